"""The result of a method's file: a `Recipe`, from which the engine makes a `Method`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.errors import UserError
from fedjax_ssl.federated.contract import (
    Client,
    Cohort,
    Metrics,
    Now,
    Params,
    PyTree,
    Sampler,
    Schedule,
    ServerState,
    Stage,
    Training,
    merged,
)
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.federated.uploads.transform import UploadTransform
from fedjax_ssl.models import Outputs
from fedjax_ssl.own_code import check_arguments, where


class ParameterGroups(NamedTuple):
    """Parameter groups of a network."""

    names: tuple[str, ...] = ("model",)
    # ^ in the order in which a local step updates them; with several groups, a group without a row
    # of the batch takes no step
    private: tuple[str, ...] = ()
    # ^ groups that every client keeps to itself and that are never averaged (FedRep's heads); the
    # server's own training uses the global ones
    split: Callable[[PyTree], Params] = lambda params: {"model": params}
    # ^ a freshly initialized network's parameters -> parameters by group; a group that is not in
    # `names` never changes
    combine: Callable[[Params], PyTree] = merged
    # ^ parameters by group -> the network's parameters
    own_statistics: bool = False
    # ^ batch statistics stay at each client too and are never averaged

    @property
    def shared(self) -> tuple[str, ...]:
        """Groups that are sent and averaged."""
        return tuple(group for group in self.names if group not in self.private)


def own_model(
    groups: ParameterGroups,
) -> Callable[[ServerState, Int[Array, ""]], tuple[PyTree, PyTree]]:
    """Return the network with a client's private groups, as `Recipe.client_model`."""

    def model_of(state: ServerState, client: Int[Array, ""]) -> tuple[PyTree, PyTree]:
        own = jax.tree.map(lambda table: table[client], state.clients.params)
        kept = {g: packing(state.params[g]).unpack(arrays) for g, arrays in own.items()}
        statistics = state.model_state
        if groups.own_statistics:
            statistics = ravel_pytree(statistics)[1](state.clients.model_state[client])
        return groups.combine({**state.params, **kept}), statistics

    return model_of


class Needs(NamedTuple):
    """The labels that a method learns from, see `FederatedData.kinds`."""

    kinds: tuple[str, ...] = ("labels",)  # names of `FederatedData.kinds`
    every_one: bool = False  # True: all of these kinds together; False: any of them is enough


_UNLABELLED = ("mixed", "unlabelled")  # streams of examples without a class label
_IN_WORDS = {
    "labels": "class labels at clients",
    "server": "class labels at the server",
    "coarse": "coarse labels",
    "sets": "sets with known class shares",
}


def in_words(needs: Needs) -> str:
    """Describe the labels that a method needs, in words.

    Example:
        >>> in_words(Needs(("coarse", "server"), every_one=True))
        'coarse labels and class labels at the server'
    """
    said = (" and " if needs.every_one else " or ").join(_IN_WORDS[kind] for kind in needs.kinds)
    return said or "no label of any kind"


class Recipe(NamedTuple):
    """A method as data: `fs.build` makes a `Method` of it, and wrappers change it.

    Example:
        >>> from fedjax_ssl.federated import labelled_epochs
        >>> def plain(setup: fs.Setup) -> fs.Recipe:
        ...     "Cross-entropy on the labelled examples."
        ...     def inputs(key, streams):
        ...         return setup.normalize(streams["labelled"].inputs)
        ...     def loss(step):
        ...         batch = step.streams["labelled"]
        ...         logits = step.outputs["plain"].logits
        ...         return fs.objectives.batch_cross_entropy(logits, batch.observed, batch.mask)
        ...     term = fs.Term("supervised", (fs.View("plain", "labelled", inputs),), loss)
        ...     sampler = labelled_epochs(setup.batch_size, setup.local_epochs, setup.max_labelled)
        ...     return fs.Recipe(setup, (fs.Stage(fs.Training((term,), sampler)),))
        >>> _ = fs.register("method", "plain", plain)
        >>> config = fs.load_config("digits", {"method.name": "plain", "rounds": 2})
        >>> fs.run(config, "runs/plain", quiet=True)["rounds"]
        2
    """

    setup: Setup  # the run's choices that it was built for
    stages: tuple[Stage, ...]
    # ^ run one after another; all but the last need `rounds`. The learning-rate schedule starts
    # anew in each stage
    groups: ParameterGroups = ParameterGroups()
    # ^ parameter groups with separate steps, and the private ones among them
    needs: Needs = Needs()  # labels that the method cannot do without
    init: Callable[[ServerState, FederatedData], ServerState] = lambda state, data: state
    # ^ (state before round 0, federation) -> the same state with the method's own additions
    after_average: Callable[[ServerState, ServerState, FederatedData], ServerState] = (
        lambda before, after, data: after
    )
    # ^ (state before a round, state at its end, federation) -> state at the start of the next one
    network: Callable[[ServerState], tuple[PyTree, PyTree]] | None = None
    # ^ state -> (parameters, batch statistics) of the network that predicts and embeds; None: the
    # global one
    predict: Callable[[ServerState, Outputs], Array] | None = None
    # ^ (state, outputs of that network) -> log-probabilities [n, K]; None: from its class scores
    client_model: Callable[[ServerState, Array], tuple[PyTree, PyTree]] | None = None
    # ^ (state, client id) -> (parameters, batch statistics) of the network that predicts for this
    # client; None: the global network, with the client's private groups unless `network` is given
    class_scores: bool = True  # losses or predictions read the network's class scores
    uploads: tuple[UploadTransform, ...] = ()
    # ^ changes of uploads (FedMatch's sparse differences), before the run's own transforms
    sends: tuple[str, ...] = ()
    # ^ messages of clients outside of their uploads, before local training or after averaging, by
    # name
    check: Callable[[FederatedData], list[str]] = lambda data: []
    # ^ (federation, on the host) -> notes before training, a sentence each; may raise ValueError
    on_host: bool = False  # a round calls host functions, so it cannot be traced
    looks_at_all: bool = False
    # ^ a round uses examples of clients outside of its cohort
    name: str = ""  # name in messages and compositions; `fs.methods.recipe` sets it

    @property
    def alone(self) -> bool:
        """Whether there is no global model; scores are then means over the clients' own models."""
        return self.setup.federated_optimizer.alone

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The clients' training, by stage."""
        return tuple(stage.clients for stage in self.stages if stage.clients)

    @property
    def starts(self) -> tuple[int, ...]:
        """Rounds before each stage."""
        lengths = [stage.rounds or 0 for stage in self.stages]
        return tuple(sum(lengths[:place]) for place in range(len(lengths)))

    @property
    def trains_unlabelled(self) -> bool:
        """Whether clients without class labels train too."""
        usual = Stage._field_defaults["count_labels"]
        return any(
            bool(stage.client_terms)
            and not (stage.labelled_quota == "only" and stage.count_labels is usual)
            for stage in self.stages
        )

    @property
    def learns_unlabelled(self) -> bool:
        """Whether the method learns from examples without class labels."""
        views = (view for one in self.trainings for term in one.terms for view in term.views)
        return self.trains_unlabelled or any(view.stream in _UNLABELLED for view in views)

    def with_schedules(self, change: Callable[[Array, Client, Schedule], Schedule]) -> "Recipe":
        """Return a recipe in which the clients' batches of a round are changed after they are
        drawn.

        Args:
            change: (the client's key in this round, client, batches) -> batches.

        Raises:
            ValueError: `change` takes other arguments; (from the first round) it returned another
                form, or a number of steps that is not whole.
        """
        says = "a change of schedules"
        check_arguments(says, change, ("key", "client", "schedule"))

        def changed(sampler: Sampler) -> Sampler:
            def schedule(key: Array, client: Client, now: Now) -> Schedule:
                drawn = sampler.schedule(key, client, now)
                made = change(key, client, drawn)
                if not isinstance(made, Schedule):
                    raise UserError(
                        f"{says} returned {type(made).__name__}; it has to return "
                        f"the Schedule that it was given, or another one ({where(change)})"
                    )
                steps = jnp.asarray(made.num_steps)
                wanted = drawn.num_steps
                if steps.dtype != wanted.dtype or steps.shape != wanted.shape:
                    raise UserError(
                        f"{says} returned num_steps of type {steps.dtype} and shape {steps.shape}; "
                        f"they have to be a number of type {wanted.dtype} ({where(change)})"
                    )
                return made

            go_on = sampler.going_on
            return sampler._replace(
                schedule=schedule,
                equal_steps=False,
                going_on=None if go_on is None else lambda steps: changed(go_on(steps)),
            )

        def of_stage(stage: Stage) -> Stage:
            own = stage.clients
            if own is None:
                return stage
            return stage._replace(clients=own._replace(sampler=changed(own.sampler)))

        return self._replace(stages=tuple(map(of_stage, self.stages)))


class Method(NamedTuple):
    """A federated learning method: pure functions, all of them jit-able, scan-able and vmap-able.

    Example:
        >>> config = fs.load_config("digits_fedavg")
        >>> from fedjax_ssl.runs import build, federate, load_experiment
        >>> experiment = load_experiment(config)
        >>> data = federate(experiment, jax.random.key(0))
        >>> method = build(experiment, data).method
        >>> state = method.init(jax.random.key(0), data)
        >>> state, metrics = jax.jit(method.round)(jax.random.key(0), state, data)
        >>> method.predict(state, data.inputs[:3]).shape
        (3, 10)
    """

    init: Callable[..., ServerState]  # (key, data) -> state
    round: Callable[..., tuple[ServerState, Metrics]]
    # ^ (run key, state, data[, execution]) -> (state, info)
    predict: Callable[..., Array]  # (state, raw inputs [n, ...]) -> log-probabilities [n, K]
    recipe: Recipe  # the recipe it was made from, with the run's additions to every method
    embed: Callable[..., Array] | None = None
    # ^ (state, raw inputs [n, ...]) -> features [n, d]; None: the method has none
    predict_for: Callable[..., Array] | None = None
    # ^ (state, client id, raw inputs) -> log-probabilities by the client's own model; None: all
    # clients use the global one
    network: Callable[..., tuple[PyTree, PyTree]] | None = None
    # ^ (state, client id or None) -> (parameters, batch statistics) of the network that predicts,
    # the client's own or the global one; None: no network predicts
    apply: Callable[..., Array] | None = None
    # ^ (parameters, batch statistics, raw inputs) -> log-probabilities by such a network; None: the
    # network has no class scores
    cohort: Callable[..., Cohort] | None = None
    # ^ (run key, round, data) -> clients whose examples this round uses besides the server's, known
    # before the round; traceable. None: a round may use any client's, so all examples must be on
    # the device


def check_is_recipe(what: str, given: Any) -> None:
    """Raise ValueError if a function of this name got something other than a recipe."""
    if not isinstance(given, Recipe):
        raise ValueError(
            f"{what} takes what fs.methods.recipe(name, setup) returns, a fedjax_ssl.Recipe, and "
            f"was given {type(given).__name__}"
        )
