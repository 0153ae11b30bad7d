"""Ditto on drawn characters: 40 writers train networks of their own, drawn to the common one.

    fedjax-ssl run glyphs_ditto
    python -m fedjax_ssl.main --config configs/glyphs_ditto.py --config.personalize.pull=0.1

As glyphs_fedbn, with another personalization. A pull of 0 trains alone. Five seeds:
docs/personal.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets


def get_config():
    config = presets.source("glyphs", "fedavg")
    config.eval_every = 20
    config.data.writers = 40
    config.data.validation_fraction = 0.0
    config.model.update(name="mlp", hidden=(128,), norm="bn")
    config.personalize.name = "ditto"
    return config
