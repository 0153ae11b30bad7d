"""A page that compares runs: `fedjax-ssl report runs/...`, and what it is made of as functions."""

from fedjax_ssl.report.errors import ReportError
from fedjax_ssl.report.page import render
from fedjax_ssl.report.reading import Report, read
