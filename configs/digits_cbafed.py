"""CBAFed on real handwriting: one writer has labels for all digits, ten have none.

The digits: 11 writers train, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_cbafed.py
    python -m fedjax_ssl.main --config configs/digits_cbafed.py:3  # three labelled writers

No augmentation: these images are 8 x 8. Result, time and hardware: docs/methods/others.md. Not an
experiment of the paper.
"""

from fedjax_ssl import config as configs
from fedjax_ssl import presets


@presets.variants
def get_config(labelled_writers: presets.Count = 1):
    config = configs.default("cbafed")
    config.data.test_clients = 3
    config.supervision.name = "all"
    config.supervision.labelled_clients = labelled_writers
    return presets.recommend(config, "all")
