"""FedRGD on real handwriting: the writers' digits have no labels, the server has a few and is a
member of the average.

The digits: 11 writers train without a label, 3 writers that were never seen are the test. Two
groups of writers.

    python -m fedjax_ssl.main --config configs/digits_fedrgd.py  # 100 labels at the server
    python -m fedjax_ssl.main --config configs/digits_fedrgd.py:50                    # 50
    python -m fedjax_ssl.main --config configs/digits_fedrgd.py:client  # 5 labels at each writer
    # without groups
    python -m fedjax_ssl.main --config configs/digits_fedrgd.py --config.federated.name=fedavg
    python -m fedjax_ssl.main --config configs/digits_fedrgd.py --config.method.user_loss=self_training

Strong views are shifted by up to a pixel, weak ones are the images, which are 8 x 8. Result of one
seed, time and hardware: docs/methods/others.md. Not an experiment of the paper.
"""

from typing import Literal

from fedjax_ssl import presets


@presets.variants
def get_config(labels: presets.Count | Literal["client"] = 100):
    if labels == "client":
        return presets.digits_by_writer("fedrgd")
    return presets.digits_with_server("fedrgd", labels)
