"""The engine: the method contract, cohorts, local training, placement, federated optimizers, evaluation."""

from fedjax_ssl.federated.cohort import Cohort, sample_cohort
from fedjax_ssl.federated.engine import BYTES_PER_NUMBER, WEIGHTINGS, Setup, federated_method
from fedjax_ssl.federated.evaluation import Scores, balanced_accuracy, evaluate, score_labels
from fedjax_ssl.federated.forward import map_rows
from fedjax_ssl.federated.local_optimizer import (
    OPTIMIZERS,
    SCHEDULES,
    learning_rate_schedule,
    local_optimizer,
)
from fedjax_ssl.federated.method import (
    Client,
    Method,
    Round,
    Sampler,
    Schedule,
    ServerState,
    Stage,
    Step,
    Stream,
    Term,
    Traffic,
    Trained,
    View,
)
from fedjax_ssl.federated.optimizers import FederatedOptimizer, fedavg, fedopt, fedprox
from fedjax_ssl.federated.placement import PLACEMENTS, map_clients
from fedjax_ssl.federated.reduction import REDUCTIONS
from fedjax_ssl.federated.sampler import labelled_epochs, mixed_epochs

__all__ = [
    "BYTES_PER_NUMBER",
    "OPTIMIZERS",
    "PLACEMENTS",
    "REDUCTIONS",
    "SCHEDULES",
    "WEIGHTINGS",
    "Client",
    "Cohort",
    "FederatedOptimizer",
    "Method",
    "Round",
    "Sampler",
    "Schedule",
    "Scores",
    "ServerState",
    "Setup",
    "Stage",
    "Step",
    "Stream",
    "Term",
    "Traffic",
    "Trained",
    "View",
    "balanced_accuracy",
    "evaluate",
    "fedavg",
    "federated_method",
    "fedopt",
    "fedprox",
    "labelled_epochs",
    "learning_rate_schedule",
    "local_optimizer",
    "map_clients",
    "map_rows",
    "mixed_epochs",
    "sample_cohort",
    "score_labels",
]
