"""Speed on fake data: the workloads of `python -m fedjax_ssl.bench`, how they are measured, bounded and shown."""

from fedjax_ssl.benchmarks.ahead import AheadOptions, Compiled, compile_config, compile_workload, config_of, prepare
from fedjax_ssl.benchmarks.measure import Options, measure
from fedjax_ssl.benchmarks.page import check_page, write_section
from fedjax_ssl.benchmarks.report import ahead_table, smoke_table, table
from fedjax_ssl.benchmarks.smoke import (
    NO_TIME,
    PLATFORMS,
    SMOKE,
    Device,
    SmokeOptions,
    beside_bounds,
    device_here,
    without_numbers,
)
from fedjax_ssl.benchmarks.targets import TARGETS, CompilerMissing, Target, check_devices
from fedjax_ssl.benchmarks.workloads import WORKLOADS, Variant, Workload
