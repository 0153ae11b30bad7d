"""Pseudo-label: in every step the network's most probable class is an unlabelled example's label.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_pseudo_label.py
    python -m fedjax_ssl.main --config configs/digits_pseudo_label.py:10  # 10 labels per writer
    # 20 labels, all at the server
    python -m fedjax_ssl.main --config configs/digits_pseudo_label.py:server,20

Unlabelled examples count from round 10 on, and fully from round 60, which the 30 rounds with labels
at the server do not reach. See docs/methods/baselines.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_consistency, "pseudo_label")
