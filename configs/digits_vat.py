"""X

    python -m fedjax_ssl.main --config configs/digits_vat.py
"""

from fedjax_ssl import presets


def get_config(labels=None):
    return presets.digits_consistency("vat", labels)
