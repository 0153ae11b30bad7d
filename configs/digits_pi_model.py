"""Pi-model: two passes over differently moved views should predict the same.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_pi_model.py
    python -m fedjax_ssl.main --config configs/digits_pi_model.py:10  # 10 labels per writer
    # 20 labels, all at the server
    python -m fedjax_ssl.main --config configs/digits_pi_model.py:server,20

Both views are moved by up to a pixel; the network has no dropout. See docs/methods/baselines.md.
Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_consistency, "pi_model")
