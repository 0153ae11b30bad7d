"""FedAvg on the labelled digits only.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_fedavg.py
    python -m fedjax_ssl.main --config configs/digits_fedavg.py:10        # 10 labels per writer

The lower baseline of every semi-supervised method here. With `:all` every label is kept: the upper
one.

Result over 5 seeds, time and hardware: docs/results.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_by_writer, "fedavg")
