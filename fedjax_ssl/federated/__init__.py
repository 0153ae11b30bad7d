"""The engine: the method contract, cohorts, local training, placement, federated optimizers, evaluation."""

from fedjax_ssl.federated.cohort import Cohort, sample_cohort
from fedjax_ssl.federated.engine import BYTES_PER_NUMBER, WEIGHTINGS, Setup, all_clients, federated_method
from fedjax_ssl.federated.episodes import episodes
from fedjax_ssl.federated.evaluation import (
    Scores,
    balanced_accuracy,
    evaluate,
    likeliest_coarse,
    score_labels,
)
from fedjax_ssl.federated.fednova import fednova
from fedjax_ssl.federated.forward import map_rows
from fedjax_ssl.federated.local_optimizer import (
    OPTIMIZERS,
    SCHEDULES,
    learning_rate_schedule,
    local_optimizer,
)
from fedjax_ssl.federated.memory import CLIENTS_AT_ONCE, VECTORIZED_RUNS, Choice, device_memory, vectorized_runs
from fedjax_ssl.federated.method import (
    Client,
    Method,
    Round,
    Sampler,
    Schedule,
    ServerState,
    ServerTraining,
    Stage,
    Step,
    Stream,
    Term,
    Traffic,
    Trained,
    View,
)
from fedjax_ssl.federated.optimizer_registry import FEDERATED_OPTIMIZERS, LocalTraining
from fedjax_ssl.federated.optimizers import FederatedOptimizer, Numbers, fedavg, fedopt, fedprox
from fedjax_ssl.federated.placement import PLACEMENTS, map_clients
from fedjax_ssl.federated.reduction import REDUCTIONS
from fedjax_ssl.federated.sampler import epochs, known_epochs, labelled_epochs, mixed_epochs
from fedjax_ssl.federated.scaffold import scaffold

__all__ = [
    "BYTES_PER_NUMBER",
    "CLIENTS_AT_ONCE",
    "FEDERATED_OPTIMIZERS",
    "OPTIMIZERS",
    "PLACEMENTS",
    "REDUCTIONS",
    "SCHEDULES",
    "VECTORIZED_RUNS",
    "WEIGHTINGS",
    "Choice",
    "Client",
    "Cohort",
    "FederatedOptimizer",
    "LocalTraining",
    "Method",
    "Numbers",
    "Round",
    "Sampler",
    "Schedule",
    "Scores",
    "ServerState",
    "ServerTraining",
    "Setup",
    "Stage",
    "Step",
    "Stream",
    "Term",
    "Traffic",
    "Trained",
    "View",
    "all_clients",
    "balanced_accuracy",
    "device_memory",
    "episodes",
    "epochs",
    "evaluate",
    "fedavg",
    "federated_method",
    "fednova",
    "fedopt",
    "fedprox",
    "known_epochs",
    "labelled_epochs",
    "learning_rate_schedule",
    "likeliest_coarse",
    "local_optimizer",
    "map_clients",
    "map_rows",
    "mixed_epochs",
    "sample_cohort",
    "scaffold",
    "score_labels",
    "vectorized_runs",
]
