"""UDA: the prediction for a strong view follows the sharpened one for a weak view.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_uda.py
    python -m fedjax_ssl.main --config configs/digits_uda.py:10           # 10 labels per writer
    # 20 labels, all at the server
    python -m fedjax_ssl.main --config configs/digits_uda.py:server,20

A weak view is moved by up to a pixel, a strong one turned by up to 20 degrees. For most of the run,
annealing holds back labelled examples that are known well. See docs/methods/baselines.md. Not an
experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_consistency, "uda")
