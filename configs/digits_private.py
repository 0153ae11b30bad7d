"""Client-level differential privacy: the digits at 100 clients, half of which train in a round.

    python -m fedjax_ssl.main --config configs/digits_private.py        # epsilon 8 at delta 1e-3
    python -m fedjax_ssl.main --config configs/digits_private.py:1      # epsilon 1
    python -m fedjax_ssl.main --config configs/digits_private.py:none   # without privacy
    fedjax-ssl sweep digits_private:noise --seeds 5 --set privacy.noise=1.0,2.0,4.0,8.0

13 or 14 labelled digits at every client, softmax regression; 3 writers that were never seen are the
test. Needs `pip install 'fedjax_ssl[privacy]'`. Results: docs/results.md. Not an experiment of a
paper.
"""

from typing import Annotated, Literal

from fedjax_ssl import presets
from fedjax_ssl.checks import In


@presets.variants
def get_config(epsilon: Annotated[float, In("(0, inf)")] | Literal["none", "noise"] = 8.0):
    config = presets.digits_by_writer("fedavg", "all")
    config.rounds = 40
    config.partition.update(name="iid", num_clients=100)
    config.model.name = "linear"
    config.model.hidden = None
    config.optimizer.update(learning_rate=0.3, local_epochs=2)
    config.federated.cohort_size = 50
    config.data.validation_fraction = 0.0
    if epsilon == "none":
        return config
    config.privacy.update(name="gaussian", delta=1e-3, clip=0.3)
    if epsilon == "noise":  # as a sweep over it gives it
        config.privacy.noise = 1.6
        return config
    config.privacy.epsilon = epsilon
    return config
