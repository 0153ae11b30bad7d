"""A composition: the terms that the argument names, in one local step.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test. With a
term for weak labels (`channels`, `sets`, `coarse`) the federation is that of `digits_mixed`: two
writers have 10 labels each, four only know whether a digit is curved, straight or both, three only
know the class shares of 5 sets, two know nothing.

    fedjax-ssl run digits_compose
    fedjax-ssl run digits_compose:supervised,fixmatch --method.fixmatch.threshold=0.9
    fedjax-ssl run digits_compose:supervised,sets,coarse,prototypes,fixmatch
    fedjax-ssl list terms
    python -m fedjax_ssl.main --config configs/digits_compose.py

A weak view is moved by up to a pixel, a strong one turned by up to 20 degrees. Measured, and what a
composition is: docs/methods/mixed.md. Not an experiment of a paper.
"""

from fedjax_ssl import config as configs
from fedjax_ssl import presets


def get_config(parts="supervised,fixmatch,prototypes"):
    if {"channels", "sets", "coarse"} & {*parts.split(",")}:
        config = presets.mixed_federation("mixed", labelled=2, coarse=4, sets=3)
        config.data.test_clients = 3
        config.supervision.labels = 10
        config.supervision.correspondence = "shape"
        config.supervision.sets = 5
        config.augment.update(name="shift", pixels=1, fill="constant")
        config.strong_augment.name = "rotate"
        config = presets.recommend(config, "mixed")
    else:
        config = presets.digits_consistency("fixmatch")
    ratio = 2 if "fixmatch" in parts.split(",") else 1
    settings = {"method.name": "compose", "method.parts": parts, "method.unlabelled_ratio": ratio}
    config = configs.with_settings(config, settings)
    with config.unlocked():
        if "graph" in config.method:
            config.method.graph.num_neighbors = 5
    return config
