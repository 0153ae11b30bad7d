"""Check that the parts of a recipe fit each other and the run."""

from fedjax_ssl.checks import check_choices, check_whole_numbers
from fedjax_ssl.federated.contract import AtServer, Stage
from fedjax_ssl.federated.leaves import what_leaves
from fedjax_ssl.federated.recipe import Recipe
from fedjax_ssl.federated.setup import WEIGHTINGS
from fedjax_ssl.federated.uploads.transform import chain


def check_recipe(recipe: Recipe) -> list[str]:
    """Return the notes about a recipe, a sentence each.

    Raises:
        ValueError: parts of it do not fit each other, see `build`.
    """
    setup = recipe.setup
    groups = recipe.groups.names
    private = recipe.groups.private
    if recipe.class_scores and not setup.model.has_class_scores:
        raise ValueError(
            "the network has no class scores, which this method learns and predicts with; use a "
            "network with a head (for example 'resnet9' in place of 'resnet8'), or a method that "
            "compares features with prototypes"
        )
    check_choices(WEIGHTINGS, weighting=setup.weighting)
    if setup.keep_optimizer and setup.average_optimizer:
        raise ValueError(
            "clients keep the state of their optimizer (keep_state) and start from the mean of "
            "the last cohort's (average_state); use one of them"
        )
    if setup.average_optimizer and setup.federated_optimizer.alone:
        raise ValueError(
            "clients that train alone have no mean of their optimizers' states; leave "
            "average_state out"
        )
    if any(stage.rounds is None for stage in recipe.stages[:-1]):
        raise ValueError("every stage but the last needs a number of rounds")
    if not set(private) <= set(groups):
        raise ValueError(
            f"private groups are {', '.join(private)}; the method's groups are {', '.join(groups)}"
        )
    for stage in recipe.stages:
        _check_when(stage)
        names = [term.name for term in stage.terms]
        if len(set(names)) < len(names):
            raise ValueError(f"terms of one stage need different names, got {names}")
        if not names:
            raise ValueError("a stage needs terms, for the clients or for the server")
        for term in stage.terms:
            if term.group not in groups:
                raise ValueError(
                    f"term {term.name!r} moves parameter group {term.group!r}, which is not "
                    f"there; the method's groups are {', '.join(groups)}"
                )
    if setup.local_scores and recipe.predict is not None:
        raise ValueError(
            "config.metrics names 'local', but predictions of this method are not its network's "
            "scores"
        )
    if setup.federated_optimizer.alone:
        _check_alone(recipe.stages)
    return [*_notes_of_sum(recipe), *_notes_of_transforms(recipe)]


def _check_when(stage: Stage) -> None:
    """Raise ValueError if a server with terms would never train."""
    if stage.server is None:
        return
    for time in stage.when:
        check_choices(("before", "after", "beside"), when=time)
    check_whole_numbers(replicas=stage.replicas)
    check_choices(("members", "replicas"), statistics_of=stage.statistics_of)
    if not stage.when:
        raise ValueError("Stage.when is empty, so that the server never trains")


def _check_alone(stages: tuple[Stage, ...]) -> None:
    """Raise ValueError if clients that train alone would need a server."""
    if any(stage.server for stage in stages):
        raise ValueError(
            "config.federated.name='local' has no server, but this method trains at the server; "
            "give the labels to clients, or use a federated optimizer"
        )
    unused = AtServer()
    for term in (term for stage in stages for term in stage.client_terms):
        if (
            term.server.prepare is not unused.prepare
            or term.server.server_update is not unused.server_update
        ):
            raise ValueError(
                f"config.federated.name='local' has no server, but this method's {term.name!r} "
                "needs one; use a method whose clients need nobody else, such as 'fedavg' or "
                "'fixmatch'"
            )


def _notes_of_sum(recipe: Recipe) -> list[str]:
    """Refuse a rule to combine uploads that does not fit the recipe; return notes about it."""
    setup = recipe.setup
    if setup.combine_uploads is None:
        return []
    uploads = chain(*recipe.uploads, *setup.uploads)
    if uploads.at_server is not None:
        raise ValueError(
            f"config.sum combines uploads in another way than by their sum, which {uploads.name} "
            "needs; use config.sum.name=mean, or leave the other out"
        )
    if setup.federated_optimizer.alone or setup.federated_optimizer.num_groups > 1:
        raise ValueError(
            "config.sum: this federated optimizer does not add up what all clients send; use "
            "config.federated.name=fedavg or another one that does"
        )
    leaves = what_leaves(recipe)
    if refused := [name for part in ("report", "optimizer") for name in leaves[part]]:
        raise ValueError(
            "config.sum is for changes of the model alone, but clients also send "
            f"{', '.join(refused)}; use another federated optimizer, or leave "
            "config.optimizer.average_state out"
        )
    more = [*leaves["terms"], *leaves["beside"]]
    return [f"config.sum is for the model alone, and not for {', '.join(more)}"] if more else []


def _notes_of_transforms(recipe: Recipe) -> list[str]:
    """Return a note about messages of clients that the run's upload transforms do not see."""
    if not recipe.setup.uploads or not recipe.sends:
        return []
    return [
        f"config.uploads: clients also send {', '.join(recipe.sends)} outside of their uploads, "
        "which no upload transform sees"
    ]
