"""Speed on fake data: the workloads of `python -m fedjax_ssl.bench`, and how they are measured."""

from fedjax_ssl.benchmarks.measure import measure, prepare, timed
from fedjax_ssl.benchmarks.workloads import WORKLOADS, Workload
