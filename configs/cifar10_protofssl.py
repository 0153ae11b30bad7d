"""ProtoFSSL on CIFAR-10: Table 3 of arXiv 2205.13921, with the settings of the authors' code.

    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py                   # iid, no norm layers
    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py:noniid,bn         # norm: none, bn, gn or sbn
    python -m fedjax_ssl.main --config configs/cifar10_protofssl.py --config.federated.name=fedprox  # mu = 0.01

100 clients with 5 labels of each class, 5 per round, 300 rounds of 10 episodes, ResNet8, RMSprop 1e-3. The paper
reports 67.8 % (iid) and 66.5 % (non-iid) without norm layers, 73.9 % and 73.4 % with batch norm; not reproduced yet.
It is a run for a GPU: 1.95 million images forward and backward through ResNet8.

The data differ from the paper's, which mixes official training and test images: here all 50,000 training images go to
the clients (450 unlabelled ones each where the paper has 490), and the official test images, all 10,000, are the test.
The paper reports the test accuracy of the round with the best validation accuracy from the 101st on. With
--config.data.validation_fraction=0.06 `summary.json` has that of all rounds that are evaluated (every fifth), and
clients have 420 unlabelled images. More in docs/methods/protofssl.md.
"""

from fedjax_ssl import config as configs

SPLITS, NORMS = {"iid": "iid", "noniid": "circulant"}, ("none", "bn", "gn", "sbn")


def get_config(variant="iid,none"):
    split, _, norm = variant.partition(",")
    norm = norm or "none"
    if split not in SPLITS or norm not in NORMS:
        raise configs.ConfigError(
            f"configs/cifar10_protofssl.py:{variant}: give iid or noniid, and one of {', '.join(NORMS)}: iid,bn"
        )
    config = configs.default("protofssl")
    config.rounds = 300
    config.eval_every = 5
    config.checkpoint_every = 4
    config.data.name = "cifar10"
    config.data.standardize = "none"  # pixels / 255, as in the code: distances depend on it
    config.partition.name = SPLITS[split]
    config.partition.num_clients = 100
    if split == "noniid":
        config.partition.balanced = 5  # FedMatch's matrix for the unlabelled examples, labels are iid
    config.supervision.name = "per_class"
    config.supervision.labels = 5
    config.model.name = "resnet8"
    config.model.norm = norm
    config.optimizer.name = "rmsprop"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.local_epochs = 10
    config.federated.cohort_size = 5
    config.federated.weighting = "examples"
    return config
