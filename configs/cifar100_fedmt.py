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

from typing import Literal

from fedjax_ssl import config as configs
from fedjax_ssl import presets


@presets.variants
def get_config(
    labels: presets.Count = 2000,
    matrix: Literal["known", "estimated"] = "known",
    split: presets.Split = "iid",
):
    config = configs.default("fedmt")
    config.rounds = 800
    config.eval_every = 10
    config.checkpoint_every = 5
    config.data.name = "cifar100"
    presets.semifl_clients(config, split)
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
