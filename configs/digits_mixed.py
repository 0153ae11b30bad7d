"""Clients with labels, with coarse labels, with class shares of sets, and with nothing, training
one model together.

The digits: 11 writers train, 3 writers that were never seen are the test. Two writers have 10
labels each, four only know whether a digit is curved, straight or both, three only know the class
shares of 5 sets, two know nothing.

    python -m fedjax_ssl.main --config configs/digits_mixed.py
    # what is left without weak labels
    python -m fedjax_ssl.main --config configs/digits_mixed.py:labels

Variants: mixed (channels and propagated labels), channels (without the graph), labels (the two
writers with labels alone), labels_xclp (all others count as unlabelled), coarse and sets (only
these writers).

Result over 5 seeds, time and hardware: docs/methods/mixed.md. Not an experiment of a paper.
"""

from fedjax_ssl import presets


@presets.variants
def get_config(variant: presets.Mixed = "mixed"):
    config = presets.mixed_federation(variant, labelled=2, coarse=4, sets=3)
    config.data.test_clients = 3
    config.supervision.labels = 10
    config.supervision.correspondence = "shape"
    config.supervision.sets = 5
    return presets.recommend(config, "mixed")
