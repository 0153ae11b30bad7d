"""Runs over several processes and machines: how they find each other, agree, and end together."""

from fedjax_ssl.distributed.devices import run_devices, share_out
from fedjax_ssl.distributed.settings import PREEMPTED, STALLED, Settings, settings
from fedjax_ssl.distributed.start import Preempted, leave, start
from fedjax_ssl.distributed.team import Team
from fedjax_ssl.distributed.watchdog import Watchdog
