"""FedSem+: the network's predictions as pseudo-labels, frozen.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_fedsem.py
    python -m fedjax_ssl.main --config configs/digits_fedsem.py:10        # 10 labels per writer

Pseudo-labels are made once, after 40 rounds on the labels alone.

Result over 5 seeds, time and hardware: docs/results.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_by_writer, "fedsem")
