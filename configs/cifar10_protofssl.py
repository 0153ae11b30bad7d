"""ProtoFSSL on CIFAR-10: Tables 3 and 4 of arXiv 2205.13921, with the settings and the data of the
authors' code.

    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py  # iid, no norm layers
    # norm: none, bn, gn or sbn
    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py:noniid,bn
    # the large network of Table 4
    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py:iid,sbn,resnet17
    # or stl10, which is iid alone
    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py:iid,bn,resnet8,svhn
    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py:iid_full,none,resnet8 --config.method.name=fedavg \\
        # upper bound
        --config.model.name=resnet9 --config.optimizer.batch_size=32 --config.optimizer.local_epochs=2
    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py:xnid  # the authors' later study
    # labelled images unlabelled too
    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py:xnid_overlap
    # mu = 0.01
    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py --config.federated.name=fedprox

100 clients with 50 labelled and 490 unlabelled images, 5 per round, 300 rounds of 10 episodes,
RMSprop 1e-3 whose accumulators are averaged at the server. Reported is `selected_test_accuracy` of
`summary.json`: of the round with the best validation accuracy from the 101st on. The paper has, iid
and non-iid in %:

    ResNet8 without norm layers 67.8, 66.5; batch norm 73.9, 73.4 (Table 3); group norm 68.3, 69.2; sbn 73.6, 68.9;
    ResNet17 with sbn 74.0, 72.0 (Table 4); no numbers for xnid.

A run for a GPU, 1.95 million images forward and backward through the network. With CIFAR-10's
images stored as JPEG, one seed, the first of these has 63.8 % (docs/results.md).
`summary.json` also has the costs of Table 2 as `analytic_gflop` and `analytic_megabytes`; the
table's own 447.9 and 52.6 are for --config.method.num_helpers=2. More in docs/methods/protofssl.md.
"""

from typing import Literal

from fedjax_ssl import config as configs
from fedjax_ssl import presets


@presets.variants
def get_config(
    split: presets.ProtoSplit = "iid",
    norm: Literal["none", "bn", "gn", "sbn"] = "none",
    network: Literal["resnet8", "resnet17"] = "resnet8",
    dataset: Literal["cifar10", "svhn", "stl10"] = "cifar10",
):
    config = configs.default("protofssl")
    presets.protofssl_split(config, dataset, split)
    config.rounds = 300
    config.eval_every = 1  # as the code from the 101st round on
    config.checkpoint_every = 20
    config.select_from = 101
    config.model.name = network
    config.model.norm = norm
    config.optimizer.name = "rmsprop"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.average_state = True
    config.optimizer.local_epochs = 10
    config.federated.cohort_size = 5
    config.federated.weighting = "examples"
    if split.startswith("xnid"):
        config.seed = 101
        config.optimizer.local_epochs = 15
        config.method.num_unlabelled = 200
        config.method.unlabel_round = 200
        config.method.keep_proto_rounds = 10
        config.method.num_helpers = 15
    return config
