"""Four real hospitals, 740 patients: FLamby's Fed-Heart-Disease, with its training.

    python -m fedjax_ssl.main --config configs/fed_heart_disease.py --config.data.path=FOLDER
    # 10 labels each
    python -m fedjax_ssl.main --config configs/fed_heart_disease.py:xclp,10 --config.data.path=FOLDER

FOLDER holds UCI's four files (docs/datasets.md). Without an argument: FedAvg on all labels,
logistic regression, 15 rounds of 100 local updates on 4 patients each, inputs standardized by every
hospital's own training rows; the table of all strategies is experiments/fed_heart_disease.py. With
METHOD,LABELS: few labels, softmax regression, 60 rounds of 5 local epochs.
"""

from typing import Literal

from fedjax_ssl import config as configs
from fedjax_ssl import presets


@presets.variants
def get_config(method: str | None = None, labels: presets.Count | Literal["all"] = "all"):
    shared = configs.default()
    shared.data.update(name="fed_heart_disease", standardize="client")
    if method:
        shared.model.name = "linear"
        shared.optimizer.update(learning_rate=0.03, local_epochs=5, batch_size=10)
        if labels != "all":
            shared.supervision.update(name="per_client", labels=labels)
        config = presets.of_method(method, shared, shared_optimizer=True)
        config.rounds = 60
        config.eval_every = 60
        return config
    shared.model.name = "logistic"
    shared.federated.weighting = "labelled"
    shared.optimizer.update(learning_rate=0.001, batch_size=4, local_steps=100)
    shared.rounds = 15
    shared.eval_every = 15
    return shared
