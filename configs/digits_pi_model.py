"""X

    python -m fedjax_ssl.main --config configs/digits_pi_model.py
"""

from fedjax_ssl import presets


def get_config(labels=None):
    return presets.digits_consistency("pi_model", labels)
