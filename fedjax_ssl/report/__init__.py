"""A page that compares runs: `fedjax-ssl report runs/...`, and its parts as functions."""

from fedjax_ssl.report.page import render
from fedjax_ssl.report.runs import Report, ReportError, read
