"""FedSiam: mean-teacher consistency at the clients.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_fedsiam.py
    python -m fedjax_ssl.main --config configs/digits_fedsiam.py:10        # 10 labels per writer

Only clients with labels take part; the network has a second head for the consistency loss.

Result over 5 seeds, time and hardware: docs/results.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_by_writer, "fedsiam")
