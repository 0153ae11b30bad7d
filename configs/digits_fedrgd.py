"""FedRGD on real handwriting: the writers' digits have no labels, the server has a few and is a
member of the average.

The digits: 11 writers train without a label, 3 writers that were never seen are the test. Two
groups of writers.

    python -m fedjax_ssl.main --config configs/digits_fedrgd.py  # 100 labels at the server
    python -m fedjax_ssl.main --config configs/digits_fedrgd.py:50                    # 50
    python -m fedjax_ssl.main --config configs/digits_fedrgd.py:client  # 5 labels at each writer
    # without groups
    python -m fedjax_ssl.main --config configs/digits_fedrgd.py --config.federated.name=fedavg
    python -m fedjax_ssl.main --config configs/digits_fedrgd.py --config.method.user_loss=self_training

Strong views are shifted by up to a pixel, weak ones are the images, which are 8 x 8. Result of one
seed, time and hardware: docs/methods/fedrgd.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets


def get_config(labels="100"):
    at_clients = labels == "client"
    config = (
        presets.digits_by_writer("fedrgd")
        if at_clients
        else presets.digits_with_server("fedrgd", labels)
    )
    config.rounds = 80 if at_clients else 20
    config.method.labels = "client" if at_clients else "server"
    config.strong_augment.name = "shift"
    config.strong_augment.pixels = 1
    config.federated.name = "grouped"
    config.optimizer.learning_rate = 0.03
    config.optimizer.schedule = "constant"  # the method has its own
    config.optimizer.momentum = 0.9
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 1e-4
    config.optimizer.clip_norm = None
    config.optimizer.keep_state = True
    config.optimizer.keep_by = "slot"
    config.optimizer.batch_size = 10
    return config
