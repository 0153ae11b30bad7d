"""Stages of methods that may train on labels alone before pseudo-labels are made.

Stage 1 is federated averaging on the labelled examples; stage 2 trains on labelled and
pseudo-labelled ones.
"""

from collections.abc import Callable

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.federated import (
    Recipe,
    Setup,
    Stage,
    Term,
    Training,
    labelled_epochs,
    mixed_epochs,
)
from fedjax_ssl.federated.contract import PyTree, ServerState
from fedjax_ssl.methods.parts.terms import supervised_term


def labelled_stage(setup: Setup, rounds: int | None) -> Stage:
    """Return the stage of supervised training: epochs over the labelled examples, with a cohort of
    clients with labels.
    """
    sampler = labelled_epochs(setup.batch_size, setup.local_epochs, setup.max_labelled)
    return Stage(Training((supervised_term(setup),), sampler), labelled_quota="only", rounds=rounds)


def mixed_stage(setup: Setup, term: Term, labelled_quota: str = "proportional") -> Stage:
    """Return the stage of semi-supervised training, until the end: batches of labelled and
    unlabelled examples, stream "mixed".
    """
    sampler = mixed_epochs(
        setup.batch_size, setup.local_epochs, setup.max_labelled, setup.max_unlabelled
    )
    return Stage(Training((term,), sampler), labelled_quota=labelled_quota)


def after_labelled_stage(
    setup: Setup,
    stage: Stage,
    warmup_rounds: int,
    network: Callable[[ServerState], tuple[PyTree, PyTree]] | None = None,
    on_host: bool = False,
) -> Recipe:
    """Return a recipe with `warmup_rounds` rounds of stage 1 (none if 0), then stage 2; `on_host`
    is as in `Recipe`.

    Raises:
        ValueError: if `warmup_rounds` is not a whole number of at least 0.
    """
    check_whole_numbers(0, warmup_rounds=warmup_rounds)
    stages = (labelled_stage(setup, warmup_rounds), stage) if warmup_rounds else (stage,)
    return Recipe(setup, stages, network=network, on_host=on_host)
