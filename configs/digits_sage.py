"""SAGE on real handwriting: every writer has labels for a few digits.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_sage.py
    python -m fedjax_ssl.main --config configs/digits_sage.py:20  # 20 labels per writer

No augmentation: these images are 8 x 8. Result, time and hardware: docs/methods/others.md. Not an
experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_by_writer, "sage")
