"""Ditto on drawn characters: 40 writers train networks of their own, drawn to the common one.

    fedjax-ssl run glyphs_ditto
    python -m fedjax_ssl.main --config configs/glyphs_ditto.py --config.personalize.pull=0.1

As glyphs_fedbn, with another personalization. A pull of 0 trains alone. Five seeds:
docs/results.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets


def get_config():
    return presets.personal_glyphs("ditto")
