"""FedMatch on real handwriting: similar writers help each other to label, and supervised weights
are kept apart.

The digits: 11 writers train, 3 writers that were never seen are the test, a tenth of the training
examples is for the learning rate.

    # 5 labels of each digit at every writer
    python -m fedjax_ssl.main --config configs/digits_fedmatch.py
    # 100 labels at the server, none at writers
    python -m fedjax_ssl.main --config configs/digits_fedmatch.py:ls

A learning rate 30 times the paper's for this small network, l2_weight a thirtieth of it; no strong
augmentation. Helpers in every other round, since 60 rounds have few tenths. Result:
docs/methods/fedmatch.md. Not an experiment of the paper.
"""

from typing import Literal

from fedjax_ssl import config as configs
from fedjax_ssl import presets


@presets.variants
def get_config(where: Literal["lc", "ls"] = "lc"):
    config = configs.default("fedmatch")
    config.data.test_clients = 3
    config.data.validation_fraction = 0.1
    place = "per_class" if where == "lc" else "server"
    config.supervision.update(name=place, labels=5 if where == "lc" else 100)
    return presets.recommend(config, place)
