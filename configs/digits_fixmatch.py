"""FixMatch: a confident prediction for a weak view of an example is the label of its strong view.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_fixmatch.py
    python -m fedjax_ssl.main --config configs/digits_fixmatch.py:10  # 10 labels per writer
    # 20 labels, all at the server
    python -m fedjax_ssl.main --config configs/digits_fixmatch.py:server,20

A weak view is moved by up to a pixel, a strong one turned by up to 20 degrees. See
docs/methods/baselines.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_consistency, "fixmatch")
