"""FedRep on real handwriting: writers learn of what kind a digit is, with heads of their own; the
server knows a few.

The digits: 11 writers train with coarse labels, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_fedrep.py  # 20 class labels, shape
    python -m fedjax_ssl.main --config configs/digits_fedrep.py:50,parity             # even or odd
    python -m fedjax_ssl.main --config configs/digits_fedrep.py --config.method.shared_head=True
    # 2 labels per class and writer
    python -m fedjax_ssl.main --config configs/digits_fedrep.py:class

With "class" it is FedRep as its own paper has it: all 14 writers train and keep 30 % of their
digits as a test. `test_client_accuracy` is that of their own heads, `test_accuracy` that of the
mean of all heads. A baseline of FedMT, see docs/methods/fedmt.md; not an experiment of a paper.
"""

from fedjax_ssl import config as configs
from fedjax_ssl import presets


def get_config(variant="20,shape"):
    if variant == "class":
        config = presets.digits_by_writer("fedrep")
        config.method.labels = "class"
        config.data.test_clients = 0
        config.data.client_test_fraction = 0.3
        config.supervision.name = "per_class"
        config.supervision.labels = 2
        config.optimizer.learning_rate = 0.1
        config.optimizer.batch_size = 10
        return config
    labels, _, space = variant.partition(",")
    if space not in ("shape", "parity", "halves"):
        raise configs.ConfigError(
            f"configs/digits_fedrep.py:{variant}: give LABELS,SPACE with SPACE in shape, parity, "
            "halves, or class"
        )
    return presets.digits_with_coarse_labels("fedrep", labels, space)
