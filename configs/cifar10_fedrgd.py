"""FedRGD on CIFAR-10, with the settings of the authors' code (arXiv 2008.11364).

    python -m fedjax_ssl.main --config configs/cifar10_fedrgd.py  # 1,000 labels at the server
    # ResNet-9, 300 rounds
    python -m fedjax_ssl.main --config configs/cifar10_fedrgd.py:server,short
    # 50 labels at each of 100 clients
    python -m fedjax_ssl.main --config configs/cifar10_fedrgd.py:client
    # ... of two classes each
    python -m fedjax_ssl.main --config configs/cifar10_fedrgd.py:client,noniid
    python -m fedjax_ssl.main --config configs/cifar10_fedrgd.py --config.federated.name=fedavg --config.model.norm=bn

"server": 10 users, all in every round, two groups, R = 0.4, ResNet-18 with group norm, 19,200
rounds of 16 steps. The tables of the paper are not known to us. About 1.4 EFLOP, a run for a large
GPU; not run yet.

"client": 5 of 100 clients in each of 600 rounds of 5 steps, ResNet-9 with group norm. Table 3 of
ProtoFSSL (arXiv 2205.13921) quotes 69.7 % (iid) and 63.4 % (non-iid) for FedRGD; not run yet. What
differs from what is known of these runs, whose code was not published complete: the schedule is a
plain cosine (theirs runs through 2.24 pi), pseudo-labels go from the weak to the
strong view, and unlabelled images of "noniid" are the client's iid part without its labelled ones.
More in docs/methods/others.md.
"""

from typing import Literal

from fedjax_ssl import config as configs
from fedjax_ssl import presets

STEPS_PER_EPOCH = {"server": 1024, "client": 15}


@presets.variants
def get_config(
    labels: Literal["server", "client"] = "server", kind: Literal["short", "noniid"] | None = None
):
    if kind not in (None, "short" if labels == "server" else "noniid"):
        raise configs.ConfigError(f"{labels} has no {kind}; give server,short or client,noniid")
    config = configs.default("fedrgd")
    config.data.name = "cifar10"
    config.data.mean = (0.4914, 0.4822, 0.4465)
    config.data.std = (0.2471, 0.2435, 0.2616)
    config.augment.name = "crop_flip"
    config.strong_augment.name = "randaugment_fedrgd"
    config.method.labels = labels
    config.method.warmup_steps = 5 * STEPS_PER_EPOCH[labels]
    config.model.norm = "gn"
    config.federated.name = "grouped"
    config.optimizer.momentum = 0.9
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 1e-4
    config.optimizer.batch_size = 64
    config.optimizer.keep_state = True
    if labels == "server":
        config.rounds = 19_200
        config.method.local_steps = 16
        config.optimizer.learning_rate = 0.165  # 0.03 (10 users + 1) 64 / 128
        config.model.name = "resnet18"
        config.partition.name = "own_class"
        config.partition.skew = 0.4
        config.partition.num_clients = 10
        config.supervision.name = "server"
        config.supervision.labels = 1000
        if kind == "short":
            config.rounds = 300
            config.method.warmup_steps = 80
            config.model.name = "resnet9"
    else:
        config.rounds = 600
        config.method.local_steps = 5
        config.optimizer.learning_rate = 0.0075  # 0.003 5 64 / 128
        config.model.name = "resnet9"
        config.partition.name = "iid"
        config.partition.num_clients = 100
        config.federated.cohort_size = 5
        config.supervision.name = "class_pairs" if kind == "noniid" else "per_client"
        config.supervision.labels = 50
    config.eval_every = max(config.rounds // 60, 1)
    return config
