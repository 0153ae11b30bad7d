"""Speed on fake data: the workloads of `python -m fedjax_ssl.bench`, how they are measured and shown."""

from fedjax_ssl.benchmarks.measure import Options, measure
from fedjax_ssl.benchmarks.report import table
from fedjax_ssl.benchmarks.workloads import WORKLOADS, Variant, Workload
