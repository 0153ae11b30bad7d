"""FedMatch's streaming task, on MNIST in place of Fashion-MNIST: Table 2 of Jeong et al., ICLR
2021.

    python -m fedjax_ssl.main --config configs/mnist_fedmatch.py                # labels at clients
    # at the server; a quarter of channels
    python -m fedjax_ssl.main --config configs/mnist_fedmatch.py:ls,0.25

10 clients that all take part in every round, 100 rounds; a client's unlabelled images, of uneven
classes, come in ten parts, one for ten rounds, and are gone then. 70,000 images are 63,000 for
training, 3,500 for test, 3,500 for validation. 28x28 images are shown as 32x32 in three channels.
An .npz file with Keras' arrays in place of the download: --config.data.name=npz
--config.data.path=mnist.npz.

The paper's numbers (mean of the local models' test accuracy, 77.95 % with labels at clients, 84.15
% at the server) are of Fashion-MNIST and cannot be compared; here `client_validation_accuracy` is
the mean of local models. A run for a GPU.
"""

from typing import Literal

from fedjax_ssl import presets


@presets.variants
def get_config(where: Literal["lc", "ls"] = "lc", channels: presets.Share = 1.0):
    config = presets.fedmatch("mnist", where, channels)
    config.rounds = 100
    config.eval_every = 10
    config.partition.num_clients = 10
    config.partition.noniid = True
    config.partition.parts = 10
    config.model.pad = 2
    config.model.colours = True
    return config
