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

from typing import Literal

from fedjax_ssl import presets


@presets.variants
def get_config(labels: presets.Count | Literal["class"] = 20, space: presets.Space = "shape"):
    if labels == "class":
        config = presets.digits_by_writer("fedrep")
        config.method.labels = "class"
        config.data.test_clients = 0
        config.data.client_test_fraction = 0.3
        config.supervision.name = "per_class"
        config.supervision.labels = 2
        config.optimizer.learning_rate = 0.1
        config.optimizer.batch_size = 10
        return config
    return presets.digits_with_coarse_labels("fedrep", labels, space)
