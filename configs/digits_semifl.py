"""SemiFL on real handwriting: the writers' digits have no labels, the server has a few.

The digits: 11 writers train without a label, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_semifl.py
    python -m fedjax_ssl.main --config configs/digits_semifl.py:50  # 50 labels at the server

No augmentation: these images are 8 x 8. Result over 5 seeds, time and hardware:
docs/methods/fedmt.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_with_server, "semifl")
