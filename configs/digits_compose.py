"""A composition: terms for labels of several kinds in one local step, as the argument names them.

The digits of `digits_mixed`: 11 writers train, of whom two have 10 labels each, four only know
whether a digit is curved, straight or both, three only know the class shares of 5 sets, two know
nothing. 3 writers that were never seen are the test.

    fedjax-ssl run digits_compose
    fedjax-ssl run digits_compose:supervised,sets,coarse,prototypes,fixmatch
    fedjax-ssl run digits_compose --method.graph.weight=0.5
    fedjax-ssl list terms
    python -m fedjax_ssl.main --config configs/digits_compose.py

Every writer learns from what it knows (`channels`), and from labels that travel over one graph of
all examples (`graph`). See docs/methods/compose.md. Not an experiment of a paper.
"""

from fedjax_ssl import config as configs
from fedjax_ssl import presets


def get_config(parts="channels,graph"):
    config = presets.mixed_federation("mixed", labelled=2, coarse=4, sets=3)
    config = configs.with_settings(config, {"method.name": "compose", "method.parts": parts})
    with config.unlocked():
        config.data.test_clients = 3
        config.supervision.labels = 10
        config.supervision.correspondence = "shape"
        config.supervision.sets = 5
        if "graph" in config.method:
            config.method.graph.num_neighbors = 5
        if "fixmatch" in config.method:
            config.method.fixmatch.unlabelled_ratio = 2
        # A weak view is moved, a strong one turned.
        config.augment.update(name="shift", pixels=1, fill="constant")
        config.strong_augment.name = "rotate"
        return presets.recommend(config, "mixed")
