"""FedAvg with the global network's own predictions as pseudo-labels.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_network_pseudo_label.py
    # 10 labels per writer
    python -m fedjax_ssl.main --config configs/digits_network_pseudo_label.py:10

Pseudo-labels are made anew in every round after 40 rounds on the labels alone.

Result over 5 seeds, time and hardware: docs/results.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_by_writer, "network_pseudo_label")
