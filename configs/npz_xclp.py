"""FedAvg+XCLP on your own arrays: 100 clients with 10 labels each, the small convolutional network.

    python -m fedjax_ssl.main --config configs/npz_xclp.py --config.data.path=mnist.npz

The file holds `inputs` and `labels`, optionally `client` and the same with `test_` in front, or the
names that Keras uses (`x_train`, ...); see docs/data.md. If it has the column `client`,
`configs/npz_xclp.py:natural` keeps its clients and all of them take part in every round. Result on
MNIST, time and hardware: docs/results.md.
"""

from fedjax_ssl import config as configs


def get_config(clients="iid"):
    if clients not in ("iid", "natural"):
        raise configs.ConfigError(
            f"configs/npz_xclp.py has no variant {clients!r}; it has: iid, natural"
        )
    config = configs.default("xclp")
    config.rounds = 100
    config.eval_every = 10
    config.data.name = "npz"
    config.data.path = "data.npz"
    config.partition.name = clients
    if clients == "iid":
        config.partition.num_clients = 100
        config.federated.cohort_size = 10
    config.supervision.name = "per_client"
    config.supervision.labels = 10
    config.model.name = "cnn"
    config.method.warmup_rounds = 50
    config.optimizer.learning_rate = 0.1
    config.optimizer.batch_size = 10
    return config
