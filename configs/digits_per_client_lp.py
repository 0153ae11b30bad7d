"""FedAvg with label propagation inside every writer's own digits.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_per_client_lp.py
    python -m fedjax_ssl.main --config configs/digits_per_client_lp.py:10  # 10 labels per writer

Five labels miss most of the ten classes, so a writer's own graph labels most digits wrongly: this
is what sharing one graph repairs.

Result over 5 seeds, time and hardware: docs/results.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_by_writer, "per_client_lp")
