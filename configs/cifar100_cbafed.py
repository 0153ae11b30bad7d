"""CBAFed on CIFAR-100, with the settings of the authors' code (CVPR 2023).

    python -m fedjax_ssl.main --config configs/cifar100_cbafed.py
    python -m fedjax_ssl.main --config configs/cifar100_cbafed.py --config.supervision.labelled_clients=2

10 clients by a Dirichlet split (0.8), one with labels for all of its images and nine without any,
ResNet-18 as for ImageNet, 1,001 epochs of warm-up and 1,001 rounds: a run for a GPU, not
reproduced. The tables of the paper were not at hand, so no result is quoted. Differences of
settings: docs/methods/others.md.
"""

from fedjax_ssl import presets


def get_config():
    return presets.cbafed_on_cifar("cifar100")
