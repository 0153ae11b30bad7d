"""X

    python -m fedjax_ssl.main --config configs/digits_pseudo_label.py
"""

from fedjax_ssl import presets


def get_config(labels=None):
    return presets.digits_consistency("pseudo_label", labels)
