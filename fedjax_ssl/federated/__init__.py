"""The engine: the method contract, cohorts, local training, placement, federated optimizers,
evaluation.
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.federated.client import plain_gradient
    from fedjax_ssl.federated.client_states import (
        all_clients,
    )
    from fedjax_ssl.federated.cohort import (
        COHORTS,
        CohortSampler,
        check_cohorts,
        cohort_sampler,
        random_slots,
        sample_cohort,
    )
    from fedjax_ssl.federated.contract import (
        AtClient,
        AtServer,
        Broadcast,
        Client,
        ClientResult,
        Cohort,
        Count,
        ForLog,
        Kept,
        LocalStep,
        Losses,
        Now,
        Packed,
        Params,
        PyTree,
        RoundContext,
        RoundResult,
        Sampler,
        Schedule,
        ServerState,
        Snapshot,
        Stage,
        Step,
        StepTaken,
        Stream,
        Streams,
        TakeStep,
        Term,
        Traffic,
        Training,
        View,
        always,
        never,
    )
    from fedjax_ssl.federated.engine import build
    from fedjax_ssl.federated.evaluation import (
        BY_CLIENT,
        GLOBAL_BY_CLIENT,
        SCORES,
        balanced_accuracy,
        evaluate,
        likeliest_coarse,
        score_labels,
    )
    from fedjax_ssl.federated.execution import (
        PLACEMENTS,
        REDUCTIONS,
        VECTORIZED_RUNS,
        Choice,
        Execution,
        execute,
        tree_bytes,
    )
    from fedjax_ssl.federated.forward import map_rows, separate_passes
    from fedjax_ssl.federated.grouped import grouped
    from fedjax_ssl.federated.leaves import what_leaves
    from fedjax_ssl.federated.local_models import CLIENT_MODELS
    from fedjax_ssl.federated.local_optimizer import (
        OPTIMIZERS,
        LocalOptimizer,
        local_optimizer,
        over_layers,
    )
    from fedjax_ssl.federated.memory import device_memory, own_memory
    from fedjax_ssl.federated.messages import Download, Total, Upload
    from fedjax_ssl.federated.optimizer_registry import FEDERATED_OPTIMIZERS
    from fedjax_ssl.federated.optimizers import (
        PLAIN_SGD,
        Added,
        FederatedOptimizer,
        Grouped,
        Local,
        LocalSettings,
        Numbers,
        adaptive,
        fedavg,
        fedopt,
        fedprox,
        local,
        mean_scale,
        scaffold,
        weighted,
        weighted_mean,
    )
    from fedjax_ssl.federated.packing import packing
    from fedjax_ssl.federated.participation import (
        LOST_WHEN,
        Participation,
        participation,
    )
    from fedjax_ssl.federated.placement import deal
    from fedjax_ssl.federated.recipe import Method, Needs, ParameterGroups, Recipe, own_model
    from fedjax_ssl.federated.sampler import (
        Steps,
        batches_per_epoch,
        epochs,
        fixed_steps,
        in_turn,
        known_epochs,
        labelled_epochs,
        mixed_epochs,
        paired_batches,
        passes,
    )
    from fedjax_ssl.federated.schedules import SCHEDULES, learning_rate_schedule, schedule_name
    from fedjax_ssl.federated.setup import WEIGHTINGS, Facts, LearningRate, Setup
    from fedjax_ssl.federated.steps_ahead import decided_by_sizes, who_trains
    from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER, count, to_numbers

__getattr__, __dir__ = attach(__name__)
