"""A page that compares runs: `fedjax-ssl report runs/...`, and its parts as functions.

Example:
    >>> for seed in (0, 1):
    ...     config = fs.load_config("digits_fedavg", {"rounds": 2, "seed": seed})
    ...     _ = fs.run(config, f"runs/{seed}", quiet=True)
    >>> report = fs.report.read(["runs"])
    >>> [len(group.runs) for group in report.groups], report.metric.name
    ([2], 'test_accuracy')
    >>> page = fs.report.render(report, command="fedjax-ssl report runs")
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from fedjax_ssl.report.page import render
from fedjax_ssl.report.runs import Report, ReportError, read, read_runs
