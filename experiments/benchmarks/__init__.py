"""Speed on fake data: the workloads of `fedjax-ssl bench`, and how they are measured."""

from experiments.benchmarks.measure import measure, prepare, timed
from experiments.benchmarks.workloads import WORKLOADS, Workload
