"""FedBN on drawn characters: 40 writers share a network but for its normalization.

    fedjax-ssl run glyphs_fedbn
    fedjax-ssl run glyphs_fedbn --seed=1
    python -m fedjax_ssl.main --config configs/glyphs_fedbn.py --config.personalize.name=none

20 labels per writer, 60 rounds of 10 writers, one hidden layer of 128 units with batch
normalization. `test_client_accuracy` is that of each writer's own network, `test_client_gain` the
share of writers for whom it beats the global one. Five seeds: docs/results.md. Not an experiment
of the paper.
"""

from fedjax_ssl import presets


def get_config():
    return presets.personal_glyphs("fedbn")
