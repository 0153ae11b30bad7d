"""FedMT on CIFAR-100: clients know the 20 superclasses, the server has a few images with one of the
100 classes.

    python -m fedjax_ssl.main --config configs/cifar100_fedmt.py  # 2000 labels, known matrix, iid
    # estimated, Dirichlet split
    python -m fedjax_ssl.main --config configs/cifar100_fedmt.py:1000,estimated,0.1

100 clients, 10 per round, WRN-28-2, 800 rounds. Optimizers, batches, augmentation and splits are
those of SemiFL, whose loop FedMT extends; the paper's own values and label counts are not in our
copy of it, so no expected result is given and no run may be called a reproduction.
`--config.model.widen=8` is the network that SemiFL uses on CIFAR-100.
"""

from fedjax_ssl import config as configs
from fedjax_ssl import presets

VARIANTS = (
    "LABELS,MATRIX,SPLIT with MATRIX in {known, estimated} and SPLIT iid or a Dirichlet "
    "concentration"
)


def get_config(variant="2000,known,iid"):
    try:
        labels, matrix, split = variant.split(",")
        labels = int(labels)
        alpha = None if split == "iid" else float(split)
    except ValueError:
        raise configs.ConfigError(f"configs/cifar100_fedmt.py:{variant}: give {VARIANTS}") from None
    if matrix not in ("known", "estimated"):
        raise configs.ConfigError(f"configs/cifar100_fedmt.py:{variant}: give {VARIANTS}")
    config = configs.default("fedmt")
    config.rounds = 800
    config.eval_every = 10
    config.checkpoint_every = 5
    config.data.name = "cifar100"
    presets.semifl_clients(config, alpha)
    config.supervision.name = "coarse"
    config.supervision.correspondence = "superclass"
    config.supervision.server_labels = labels
    config.strong_augment.name = "fixmatch"
    config.model.name = "wrn28"
    config.method.correspondence = matrix
    config.method.server_batch_size = 250 if labels > 1000 else 10
    config.optimizer.learning_rate = 0.03
    config.optimizer.local_epochs = 5
    return config
