"""(FL)^2 on real handwriting: the writers' digits have no labels, the server has a few.

The digits: 11 writers train without a label, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_fl2.py
    python -m fedjax_ssl.main --config configs/digits_fl2.py:50  # 50 labels at the server
    # thresholds alone
    python -m fedjax_ssl.main --config configs/digits_fl2.py --config.method.consistency_weight=0

No augmentation: these images are 8 x 8. Result, time and hardware: docs/methods/others.md. Not an
experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_with_server, "fl2")
