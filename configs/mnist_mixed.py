"""Clients with labels, with coarse labels, with class shares of sets, and with nothing: MNIST.

40 clients of 1,500 images: 4 have 50 labels each, 14 only know whether a digit is curved, straight
or both, 14 only know the class shares of 10 sets, 8 know nothing. Test: the official 10,000 images.

    python -m fedjax_ssl.main --config configs/mnist_mixed.py
    # what is left without weak labels
    python -m fedjax_ssl.main --config configs/mnist_mixed.py:labels

An .npz file with Keras' arrays: --config.data.name=npz --config.data.path=mnist.npz. Variants as in
digits_mixed.py.

Measured at a smaller scale, on what hardware: docs/methods/mixed.md. Not an experiment of a paper.
"""

from fedjax_ssl import presets


@presets.variants
def get_config(variant: presets.Mixed = "mixed"):
    config = presets.mixed_federation(variant, labelled=4, coarse=14, sets=14)
    config.rounds = 100
    config.data.name = "mnist"
    config.partition.name = "iid"
    config.partition.num_clients = 40
    config.supervision.labels = 50
    config.supervision.correspondence = "shape"
    config.supervision.sets = 10
    config.model.name = "mlp"
    config.model.hidden = (200, 200)
    config.optimizer.learning_rate = 0.1
    config.optimizer.batch_size = 50
    config.federated.cohort_size = 20
    if "num_neighbors" in config.method:
        config.method.num_bits = 1024
        config.method.warmup_rounds = 50
    return config
