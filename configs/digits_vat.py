"""Virtual adversarial training: predictions should not change within a small ball.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_vat.py
    python -m fedjax_ssl.main --config configs/digits_vat.py:10           # 10 labels per writer
    # 20 labels, all at the server
    python -m fedjax_ssl.main --config configs/digits_vat.py:server,20

A perturbation has length 1 over the 64 standardized pixels. See docs/methods/baselines.md. Not an
experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_consistency, "vat")
