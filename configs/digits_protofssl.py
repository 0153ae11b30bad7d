"""ProtoFSSL: clients exchange class prototypes, and label their examples with those of other
clients.

The digits: 11 writers train with 3 labels of each digit, 3 writers that were never seen are the
test.

    python -m fedjax_ssl.main --config configs/digits_protofssl.py
    # 5 labels of each digit per writer
    python -m fedjax_ssl.main --config configs/digits_protofssl.py:5

An episode takes one labelled example per digit as support, two as queries, and 100 unlabelled ones;
ten of them are a writer's local training. Settings are the paper's but for the distance: divided by
the number of features, as there, it learns slowly with this small network. Result:
docs/methods/protofssl.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets


@presets.variants
def get_config(labels: presets.Several = 3):  # for support and query
    config = presets.digits_by_writer("protofssl")
    config.supervision.name = "per_class"
    config.supervision.labels = labels
    return presets.recommend(config, "per_class")
