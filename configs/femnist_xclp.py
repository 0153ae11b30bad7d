"""FedAvg+XCLP on handwritten characters of 62 classes, every writer a client with 20 labels.

    python -m fedjax_ssl.main --config configs/femnist_xclp.py             # FEMNIST, 3,400 writers
    # no download: drawn characters, 100 writers
    python -m fedjax_ssl.main --config configs/femnist_xclp.py:glyphs

FEMNIST comes from fedjax's files (docs/your_data.md). `:glyphs` runs the same experiment on an embedded
stand-in of the same shape; its accuracies are not FEMNIST's. The paper uses FEMNIST for one-shot
prediction, not for training, so there is no published number to compare with. Results of `:glyphs`,
time and hardware: docs/results.md.
"""

from typing import Literal

from fedjax_ssl import config as configs
from fedjax_ssl import presets


@presets.variants
def get_config(data: Literal["femnist", "glyphs"] = "femnist"):
    config = configs.default("xclp")
    config.data.name = data
    config.rounds = 1000 if data == "femnist" else 60
    config.eval_every = 20 if data == "femnist" else 5
    config.supervision.name = "per_client"
    config.supervision.labels = 20
    config.model.name = "cnn"
    config.method.warmup_rounds = 500 if data == "femnist" else 30
    config.optimizer.learning_rate = 0.1
    config.optimizer.batch_size = 20
    config.federated.cohort_size = 10
    return config
