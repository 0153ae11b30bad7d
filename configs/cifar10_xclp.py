"""FedAvg+XCLP on CIFAR-10: Table 4 of Scott et al., TMLR 2023 (arXiv 2210.06434).

    # 5000 labels, 100 clients have some, iid
    python -m fedjax_ssl.main --config configs/cifar10_xclp.py
    # labels, clients with labels, split
    python -m fedjax_ssl.main --config configs/cifar10_xclp.py:1000,50,noniid

100 clients, 5 per round, CNN-13, 1,500 rounds of stage 1 and 1,500 of stage 2, settings of the
authors' code (docs/methods/xclp.md). The table's numbers are not in our copy of the paper, so no
expected result is given. 90 % of the training images are used, the rest is the validation set on
which the reported round is chosen.
"""

from typing import Literal

from fedjax_ssl import config as configs
from fedjax_ssl import presets


@presets.variants
def get_config(
    labels: Literal[1000, 5000] = 5000,
    labelled_clients: Literal[50, 100] = 100,
    split: presets.Iid = "iid",
):
    config = configs.default("xclp")
    config.rounds = 3000
    config.eval_every = 10
    config.checkpoint_every = 5
    config.data.name = "cifar10"
    config.data.validation_fraction = 0.1
    config.partition.name = "iid"
    config.partition.num_clients = 100
    config.supervision.name = "total" if split == "iid" else "xclp_noniid"
    config.supervision.labels = labels if split == "iid" else labels // labelled_clients
    config.supervision.labelled_clients = labelled_clients
    if split == "iid":
        config.supervision.class_balanced = True
    config.augment.name = "crop_flip"
    config.model.name = "cnn13"
    config.method.warmup_rounds = 1500
    config.method.graph_augment = True
    batch_size = min(50, labels // labelled_clients)
    config.optimizer.batch_size = batch_size
    config.optimizer.local_epochs = 5
    config.optimizer.learning_rate = 0.3 if batch_size >= 50 else 0.1 if batch_size >= 20 else 0.05
    config.optimizer.schedule = "cosine"
    config.optimizer.schedule_rounds = 2000
    config.optimizer.weight_decay = 2e-4
    config.federated.cohort_size = 5
    return config
