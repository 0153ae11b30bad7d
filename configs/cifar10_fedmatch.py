"""FedMatch on CIFAR-10: Table 1 of Jeong et al., ICLR 2021 (arXiv 2006.12097), with the settings of
paper and code.

    python -m fedjax_ssl.main --config configs/cifar10_fedmatch.py  # labels at clients, iid
    # labels at the server, non-iid
    python -m fedjax_ssl.main --config configs/cifar10_fedmatch.py:ls,noniid
    # a quarter of the channels
    python -m fedjax_ssl.main --config configs/cifar10_fedmatch.py:lc,iid,0.25

100 clients, 5 per round, 200 rounds, ResNet-9 without norm layers, SGD 1e-3. All 60,000 images are
shuffled and cut into 54,000 for training and 3,000 each for test and validation, as in the paper. 5
labels of every class at each client, or 100 of every class at the server. The paper's test accuracy
in %, mean of three runs, and what it sends of a model to (S2C) and from (C2S) a client and round,
where averaging the whole network is 100 % each way:

    labels at   split     accuracy         S2C   C2S
    clients     iid       52.13 +- 0.34    79    46
    clients     non-iid   52.25 +- 0.81    85    49
    server      iid       44.95 +- 0.49    45    22
    server      non-iid   44.17 +- 0.19    42    20

A run for a GPU. With CIFAR-10's images stored as JPEG, one seed, the first of these has 52.3 %
(docs/results.md). Strong augmentation is RandAugment as in the authors' code. More in
docs/methods/fedmatch.md.
"""

from typing import Literal

from fedjax_ssl import presets


@presets.variants
def get_config(
    where: Literal["lc", "ls"] = "lc",
    split: presets.Iid = "iid",
    channels: presets.Share = 1.0,
):
    config = presets.fedmatch("cifar10", where, channels)
    config.rounds = 200
    config.eval_every = 5
    config.checkpoint_every = 10  # of all clients' psi and sigma, gigabytes each
    config.partition.num_clients = 100
    config.partition.noniid = split == "noniid"
    config.federated.cohort_size = 5
    return config
