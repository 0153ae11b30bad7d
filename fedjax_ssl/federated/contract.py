"""The contract that every method meets, and the parts of a recipe.

A `Method` is a pair of pure functions and a predictor. The engine makes almost every method from a
`Recipe` (recipe.py), which has stages of `Term`s: a term is one paper's addition to federated
averaging. Shapes: C clients, p = cohort size, n = padded examples per client, b = examples of one
stream in one local batch, K classes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key, Shaped, UInt32

from fedjax_ssl.data import WeakLabels
from fedjax_ssl.models import Outputs

PyTree = Any
# parameter group -> tree; one group "model" unless the method declares more
Params = dict[str, PyTree]
# parameter group -> its parameters in few arrays (`fedjax_ssl.federated.packing`)
Grouped = dict[str, PyTree]
Metrics = dict[str, Any]  # name -> scalar, or `Count` for bytes
Packed = tuple[Array, ...]  # a tree in few arrays


class Packing(NamedTuple):
    """A function from a tree to few arrays, and its inverse."""

    pack: Callable[[PyTree], Packed]
    # ^ large arrays in the order of the tree, then one vector of all small ones
    unpack: Callable[[Packed], PyTree]  # such arrays -> the tree


class Cohort(NamedTuple):
    """The clients of one round in increasing order of id, so that sums over them do not depend
    on the draw's order.
    """

    ids: Int[Array, " p"]  # C in empty slots: gathers clamp it, scatters drop it
    valid: Bool[Array, " p"]  # False in slots for which no client was eligible


class Count(NamedTuple):
    """Number of messages and the bytes of each. `+` puts two counts together."""

    times: Int[Array, "*shape m"]  # messages of each size
    sizes: UInt32[Array, "*shape m 2"]  # higher and lower half of the bytes

    def __add__(self, other: "Count") -> "Count":  # type: ignore[override]
        """Return both counts together; as a tuple, `+` would append."""
        return Count(
            jnp.concatenate([self.times, other.times], axis=-1),
            jnp.concatenate([self.sizes, other.sizes], axis=-2),
        )

    def of_all_rounds(self) -> "Count":
        """Put the counts of several rounds together; the rounds are the leading axes."""
        return Count(self.times.reshape(-1), self.sizes.reshape(-1, 2))

    def padded(self, length: int) -> "Count":
        """Return the same count, padded to `length` sizes of messages."""
        more = length - self.times.shape[-1]
        return Count(jnp.pad(self.times, (0, more)), jnp.pad(self.sizes, ((0, more), (0, 0))))

    def __int__(self) -> int:
        return int(self.to_numpy())

    def to_numpy(self) -> Shaped[np.ndarray, "*shape"]:
        """Return the bytes on the host, as uint64."""
        halves = np.asarray(self.sizes, np.uint64)
        sizes = (halves[..., 0] << np.uint64(32)) + halves[..., 1]
        return np.sum(np.asarray(self.times).astype(np.uint64) * sizes, axis=-1)


class Kept(NamedTuple):
    """State that a client keeps between its rounds; in a `ServerState` with a leading axis C."""

    params: dict[str, PyTree]
    # ^ params of the private parameter groups, in few arrays (`fedjax_ssl.federated.packing`)
    optimizer: dict[str, PyTree]  # state of the local optimizer by group, if the run keeps it
    terms: dict[str, PyTree]  # state of terms, by term name
    federated: PyTree  # the federated optimizer's state at clients: SCAFFOLD's control variates
    model_state: PyTree = ()  # batch statistics, in one vector, where clients keep their own


class ServerState(NamedTuple):
    """State that is carried from one round to the next; a checkpoint is this tree."""

    round: Int[Array, ""]  # rounds done so far
    params: Params  # global parameters, by group
    model_state: PyTree  # batch statistics, averaged like the parameters; {} without
    optimizer: PyTree  # state of the federated optimizer at the server
    terms: dict[str, PyTree]  # state of every term, by term name
    clients: Kept  # state that clients keep between rounds, leading axis C
    server: PyTree  # state of the server's local optimizer, if it is kept; leading axis 1
    local_optimizer: dict[str, PyTree] = {}  # noqa: RUF012
    # ^ mean state of the clients' local optimizers by group, if clients start from it
    uploads: PyTree = ()  # state of the upload transforms


class Client(NamedTuple):
    """One client in its local training; with a leading axis p, the cohort."""

    id: Int[Array, ""]  # index of the client
    rows: Int[Array, " n"]  # rows of `FederatedData.inputs`, labelled first, padding 0
    observed: Int[Array, " n"]  # observed class label of every example, -1 = nothing or padding
    num_labelled: Int[Array, ""]  # examples with a class label
    num_examples: Int[Array, ""]  # examples that it trains on
    sent: dict[str, PyTree]  # messages of the terms to this client in this round, by term name
    sent_by_optimizer: PyTree  # message of the federated optimizer to this client in this round
    kept: Kept | None = None  # its state since its last round
    weak: WeakLabels | None = None
    # ^ its coarse labels or sets, without the axis C; None where no client has any

    @property
    def num_known(self) -> Array:
        """Examples with a class label or a weak label; they come first in `rows`."""
        return (
            self.num_labelled if self.weak is None else self.num_labelled + self.weak.num_examples
        )


class Validation(NamedTuple):
    """Validation examples of the federation, for clients that use them (FedMatch's learning
    rates).
    """

    rows: Int[Array, " v"]  # rows in `FederatedData.inputs`
    labels: Int[Array, " v"]  # their classes
    num_examples: Int[Array, ""]  # number of real rows, which come first


class RoundContext(NamedTuple):
    """A round at the server, for terms and federated optimizers.

    Ground-truth labels are not among it, so they cannot leak.
    """

    key: Key[Array, ""]  # run key folded with the round
    run_key: Key[Array, ""]  # key of the run, for draws that stay the same in all rounds
    number: Int[Array, ""]  # rounds since the stage began
    clients: Client  # the cohort, leading axis p, in increasing order of client id
    valid: Bool[Array, " p"]  # False where the cohort has fewer clients than slots
    all_clients: Client
    # ^ all C of them, for terms that act on the whole federation; `rows` may be `NotLoaded`
    params: PyTree  # the network's parameters as broadcast
    groups: Params  # the same by parameter group
    model_state: PyTree  # batch statistics, before the round
    inputs: Array
    # ^ [N, ...] raw inputs; rows of the clients, the server and validation are valid
    validation: Validation | None = None  # validation examples of the run; None: it has none
    slots: Int[Array, " p"] | None = None
    # ^ for federated optimizers: the clients' places in a random order, see `random_slots`; places
    # from p on are other members of the average
    round: Int[Array, ""] | None = None  # rounds since the run began; None before it

    @property
    def num_clients(self) -> int:
        """Clients of the federation, C."""
        return self.all_clients.id.shape[0]


class Broadcast(NamedTuple):
    """Messages that a term sends before local training."""

    own: PyTree = ()  # messages to each client, leading axis p
    shared: PyTree = ()  # message to all of them alike, held once


class Now(NamedTuple):
    """Facts of the round that the server and all clients know."""

    number: Int[Array, ""]  # rounds since the stage began
    shared: dict[str, PyTree] = {}  # noqa: RUF012
    # ^ messages of the terms to all clients alike, by term name; never changed
    run_key: Key[Array, ""] | None = None
    # ^ key for draws that stay the same in all rounds; None: only steps are counted
    round: Int[Array, ""] | None = None  # rounds since the run began; None as above, or before it


class Stream(NamedTuple):
    """One group of slots in a local batch."""

    position: Int[Array, " b"]  # place in `Client.rows`
    mask: Bool[Array, " b"]  # False on padding
    observed: Int[Array, " b"]  # observed class label, -1 = nothing
    inputs: Array  # [b, ...] raw
    weak: Int[Array, " b"] | None = None  # observed weak label, -1 = nothing; None: there are none
    key: Key[Array, ""] | None = None  # key of this client in this round, the same in every step

    @property
    def row_keys(self) -> Key[Array, " b"]:
        """Keys of the examples in this round. With them, an example looks the same in every step as
        when it was labelled.
        """
        own = self.key
        assert own is not None, "the streams of local training have one"
        return jax.vmap(lambda place: jax.random.fold_in(own, place))(self.position)


Streams = dict[str, Stream]


class View(NamedTuple):
    """One set of inputs of the step's forward pass. Terms that ask for the same name share one
    forward pass.

    Example:
        >>> def build(key, streams):
        ...     return streams["labelled"].inputs / 16
        >>> view = fs.View("plain", "labelled", build)
        >>> view.name, view.stream
        ('plain', 'labelled')
    """

    name: str  # key of its entries in `Step.outputs` and `Step.inputs`
    stream: str  # stream of its rows, whose mask says which are real
    build: Callable[[Key[Array, ""], Streams], Array]
    # ^ -> float inputs [b, ...], from one stream or several
    mask: Callable[[Streams], Bool[Array, " b"]] | None = None  # -> real rows; None: the stream's

    def real(self, streams: Streams) -> Bool[Array, " b"]:
        """Return the mask of the real rows."""
        return streams[self.stream].mask if self.mask is None else self.mask(streams)


class Snapshot(NamedTuple):
    """Parameters and batch statistics of a network."""

    params: PyTree  # parameters of the network
    model_state: PyTree  # batch statistics
    groups: Params = {}  # noqa: RUF012


class Step(NamedTuple):
    """Inputs of a term's loss: one client, one batch, after the shared forward pass."""

    # Before the forward pass, see `LocalStep`.
    streams: Streams  # the batch, by stream
    client: Client  # client that takes the step
    start_network: Snapshot  # network that the client started from, frozen
    key: Key[Array, ""]  # random key of this step and term
    now: Now  # number of the round, and messages to all clients
    number: Int[Array, ""]  # local steps before this one
    # After the forward pass.
    outputs: dict[str, Outputs] = {}  # noqa: RUF012
    # ^ outputs by view
    inputs: dict[str, Array] = {}  # noqa: RUF012
    # ^ inputs by view, as the network saw them
    sent: PyTree = ()  # message of this term to this client
    shared: PyTree = ()  # message of this term to all clients
    local: PyTree = ()  # this term's local state
    params: PyTree = ()  # network parameters of this step, differentiable
    groups: Params = {}  # noqa: RUF012
    # ^ the same by parameter group, for a loss on one group (FedMatch's norms)
    model_state: PyTree = ()  # batch statistics before this step


class ClientResult(NamedTuple):
    """A client after local training."""

    client: Client  # the one that trained
    params: PyTree  # params of the network, as trained
    groups: Params  # the same by parameter group
    start_params: Params  # by parameter group, as the client started
    model_state: PyTree  # batch statistics at the end
    local: dict[str, PyTree]  # local states of all terms at the end
    num_steps: Int[Array, ""]  # local steps that it took
    inputs: Array  # [N, ...] raw inputs of all examples
    validation: Validation  # validation examples of the run
    key: Key[Array, ""]  # random key of this client in this round
    now: Now  # number of the round, and messages to all clients
    test: Validation | None = None  # test examples, for metrics of the log that need them


class RoundResult(NamedTuple):
    """A round after local training and averaging, as the server sees it for one term."""

    context: RoundContext  # the round, with everything sent to the clients
    sent: Broadcast  # messages of this term to the clients
    uploads: PyTree  # uploads of this term, leading axis p
    counts: Bool[Array, " p"]  # True for clients that trained and were kept
    averages: PyTree  # uploads of `client.average`, times the clients' weights, summed
    weight: Float[Array, ""]  # sum of these weights
    before: ServerState  # state at the begin of the round; states of terms as `prepare` left them
    after: ServerState  # state after averaging; states of terms as `prepare` left them

    def mean_or(self, before: PyTree) -> PyTree:
        """Return the weighted mean of the uploads of `client.average`; `before` if no client
        counts.
        """
        some = self.weight > 0
        scale = jnp.where(some, 1.0 / jnp.where(some, self.weight, 1.0), 0.0)

        def mean(total: Array, old: Array) -> Array:
            return jnp.where(some, scale * total, old.astype(total.dtype)).astype(old.dtype)

        return jax.tree.map(mean, self.averages, before)


class Traffic(NamedTuple):
    """Bytes that a term sends, summed over the cohort."""

    down: Count  # to clients
    up: Count  # from clients
    model_down: bool = True  # the model goes to every client too; False: `down` is all
    model_up: bool = True  # the model comes back too; False: `up` is all


def always(sent: Broadcast, context: RoundContext) -> Bool[Array, " p"]:
    """Return the mask of the whole cohort: every client has something to train on."""
    return context.valid


def never(sent: Broadcast, context: RoundContext) -> Bool[Array, " p"]:
    """Return an empty mask: nobody trains because of this term alone."""
    return jnp.zeros_like(context.valid)


class Losses(NamedTuple):
    """One forward pass of a local step and the losses on it."""

    terms: dict[str, Array]  # weighted losses, by term
    local: dict[str, PyTree]  # local states after the pass, by term
    model_state: Array  # batch statistics after the pass, in one vector
    outputs: dict[str, Outputs]  # outputs by view

    def total(self, terms: "tuple[Term, ...]") -> Array:
        """Add up the losses of these terms."""
        return sum((self.terms[term.name] for term in terms), start=jnp.zeros(()))


class StepTaken(NamedTuple):
    """State after a local step of one parameter group."""

    weights: Packed  # weights of the group
    optimizer: PyTree  # the group's state of the local optimizer
    model_state: Array  # batch statistics, in one vector
    local: dict[str, PyTree]  # local states, by term
    loss: Float[Array, ""]  # sum over all terms that move the group
    outputs: dict[str, Outputs]  # outputs of the forward pass, by view


class LocalStep(NamedTuple):
    """One local step of one parameter group before it is taken, as `wrap_step` sees it.

    A wrapper may change the step before it is taken, and its result afterwards.

    Example:
        >>> def smaller(step):  # a `Stage.wrap_step`: half of every gradient
        ...     def halved(at):
        ...         loss, gradient, losses = at.gradient(at)
        ...         return loss, jax.tree.map(lambda x: x / 2, gradient), losses
        ...     return lambda at: step(at._replace(gradient=lambda _: halved(at)))
    """

    inputs: Step  # client, batch, key and number of the step; no results of a forward pass
    terms: "tuple[Term, ...]"  # terms that move the group
    weights: Packed  # weights of the group, before the step
    optimizer: PyTree  # the group's state of the local optimizer, before the step
    packing: Packing  # layout of `weights`
    unravel: Callable[[Array], PyTree]  # batch statistics in one vector -> their tree
    gradient: Callable[["LocalStep"], tuple[Array, Packed, Losses]]
    # ^ -> (loss, gradient of the weights, losses); by default of the sum of all losses
    correct: Callable[[Packed, Packed], Packed]
    # ^ (gradient, weights) -> gradient; by default the federated optimizer's correction
    forward: Callable[..., tuple[dict[str, Array], dict[str, Outputs], PyTree]]
    # ^ forward pass; by default `fedjax_ssl.federated.forward.forward_views`
    run: Callable[..., Losses]  # the engine's part of `evaluate`

    def evaluate(self, weights: Packed, terms: "tuple[Term, ...]") -> Losses:
        """Run a forward pass with these weights and compute the losses of these terms on it.

        Args:
            weights: weights of the group.
            terms: the losses; not all of them have to move the group.
        """
        return self.run(self, weights, terms)

    def network(self, taken: StepTaken) -> Snapshot:
        """Return the network's parameters and batch statistics after a step that moves this group
        alone.
        """
        own = {self.terms[0].group: self.packing.unpack(taken.weights)}
        params = merged({**self.inputs.start_network.groups, **own})
        return Snapshot(params, self.unravel(taken.model_state))

    def with_network(self, taken: StepTaken, network: Snapshot) -> StepTaken:
        """Return the state after a step, with another network in its place."""
        return taken._replace(
            weights=self.packing.pack(_like(self.packing.unpack(taken.weights), network.params)),
            model_state=ravel_pytree(network.model_state)[0],
        )


def _like(part: PyTree, whole: PyTree) -> PyTree:
    """Return the entries of a tree of nested dicts that another tree has too."""
    if not isinstance(part, dict):
        return whole
    return {name: _like(own, whole[name]) for name, own in part.items()}


TakeStep = Callable[[LocalStep], StepTaken]


class AtServer(NamedTuple):
    """Functions of a term at the server: at the start, before local training and after it."""

    init: Callable[[Key[Array, ""], PyTree, PyTree, Client], PyTree] = (
        lambda key, params, model_state, clients: ()
    )
    # ^ (key, network parameters, model state, all clients) -> state
    prepare: Callable[[PyTree, RoundContext], tuple[Broadcast, PyTree]] = lambda state, context: (
        Broadcast(),
        state,
    )
    # ^ (state, context) -> (sent, state)
    participates: Callable[[Broadcast, RoundContext], Array] = always
    # ^ (sent, context) -> bool [p]: the client has something to train on; a client for which no
    # term says so takes no step
    server_update: Callable[[PyTree, RoundResult], PyTree] = lambda state, outcome: state
    # ^ (state, outcome) -> state
    at_clients: bool = False
    # ^ clients compute the result of `prepare` themselves from other messages: no bytes are sent


class AtClient(NamedTuple):
    """Functions of a term at a client beside its loss."""

    keep: Callable[[PyTree, PyTree, Client], PyTree] = lambda params, model_state, client: ()
    # ^ (network parameters, model state, client) -> first state that the client keeps between its
    # rounds
    start: Callable[[PyTree, PyTree, PyTree, PyTree], PyTree] = (
        lambda state, params, model_state, kept: ()
    )
    # ^ (term state, network parameters, model state, kept) -> local state, which lasts for this
    # local training
    wrap_step: Callable[[TakeStep, str], TakeStep] | None = None
    # ^ (local step of the term's parameter group, name of the term) -> step in its place; None:
    # unchanged
    collect: Callable[[ClientResult], PyTree] = lambda trained: ()
    # ^ -> upload that the server sees client by client
    average: Callable[[ClientResult], PyTree] = lambda trained: ()
    # ^ -> upload of which the server sees the weighted mean
    remember: Callable[[ClientResult], PyTree] | None = None
    # ^ -> state to keep from now on; None: unchanged


class ForLog(NamedTuple):
    """Metrics of a term for the log; they never reach training."""

    measure: Callable[[ClientResult], PyTree] = lambda trained: ()  # -> for `diagnose` alone
    diagnose: Callable[[RoundResult, Array, PyTree], Metrics] = lambda outcome, truth, measured: {}
    # ^ (outcome, true labels [p, n], measured with leading axis p) -> metrics
    traffic: Callable[[RoundResult], Traffic] | None = None
    # ^ bytes of the term; None: the model goes both ways, and one number for each entry that the
    # term hands out and collects


class Term(NamedTuple):
    """Addition of a method to federated averaging. Only `name`, `views` and `loss` are required.

    Example:
        >>> def build(key, streams):
        ...     return streams["labelled"].inputs / 16
        >>> view = fs.View("plain", "labelled", build)
        >>> def loss(step):
        ...     batch = step.streams["labelled"]
        ...     logits = step.outputs["plain"].logits
        ...     return fs.objectives.batch_cross_entropy(logits, batch.observed, batch.mask)
        >>> fs.Term("supervised", (view,), loss, weight=0.5).name
        'supervised'
    """

    name: str  # name in metrics, states and uploads; different in a stage
    views: tuple[View, ...]  # forward passes that the loss needs; terms share a view by its name
    loss: Callable[[Step], Any]  # -> scalar, which is differentiated, or (scalar, local state)
    weight: float | Array = 1.0  # factor of the loss
    group: str = "model"  # the parameter group whose gradient this loss moves
    server: AtServer = AtServer()  # its part at the server, around local training
    client: AtClient = AtClient()  # its part at a client, beside the loss
    log: ForLog = ForLog()  # its metrics, and its count of bytes
    sends: str = ""  # its uploads, in words, for messages; "": none, or not described


class Training(NamedTuple):
    """Local training of a round, of clients or of the server.

    Example:
        >>> sampler = fs.federated.labelled_epochs(10, local_epochs=1, max_labelled=50)
        >>> fs.Training((), sampler).terms
        ()
    """

    terms: tuple[Term, ...]  # losses
    sampler: "Sampler"  # batches
    rate: Callable[[Client], Float[Array, ""]] | None = None
    # ^ client -> factor of its learning rate; None: 1
    weigh: Callable[[Client, dict[str, PyTree]], Float[Array, ""]] | None = None
    # ^ (client, uploads by term) -> its weight in the average; None: the run's weighting
    wrap_step: Callable[[TakeStep], TakeStep] | None = None
    # ^ local step of a parameter group -> step in its place, with another gradient or other forward
    # passes; applied before those of the terms; None: unchanged


class Stage(NamedTuple):
    """A stretch of rounds with its own terms, batches and cohort: clients train, the server on its
    own labelled examples, or both. The server state goes on from stage to stage.

    Example:
        >>> from fedjax_ssl.federated import labelled_epochs
        >>> sampler = labelled_epochs(batch_size=10, local_epochs=1, max_labelled=50)
        >>> stage = fs.Stage(fs.Training((), sampler), labelled_quota="only", rounds=20)
        >>> stage.rounds
        20
    """

    clients: Training | None  # None: only the server trains
    server: Training | None = None  # None: only clients train
    when: tuple[str, ...] = ("after",)
    # ^ the server trains "before" the clients, "after" their models were averaged, or both;
    # "beside" them it is a member of the average
    replicas: int = 1
    # ^ server copies in the average, beside the clients: each draws its own batches and weighs 1
    statistics_of: str = "members"
    # ^ members whose batch statistics the next model gets: all "members" of the average, or the
    # "replicas" alone
    keep_server_optimizer: bool = False
    # ^ keep the state of the server's local optimizer between rounds
    labelled_quota: str = "proportional"  # see `fedjax_ssl.federated.sample_cohort`
    rounds: int | None = None  # None: until the end
    count_labels: Callable[[Client], Array] = lambda clients: clients.num_labelled  # for the quota

    @property
    def client_terms(self) -> tuple[Term, ...]:
        """Terms of the clients; none if only the server trains."""
        return () if self.clients is None else self.clients.terms

    @property
    def terms(self) -> tuple[Term, ...]:
        """Terms of clients and server."""
        return (*self.client_terms, *(() if self.server is None else self.server.terms))

    def with_terms(self, *terms: Term) -> "Stage":
        """Return the stage with further terms at its clients; without clients, the same stage."""
        own = self.clients
        return self._replace(clients=own and own._replace(terms=(*own.terms, *terms)))


class Schedule(NamedTuple):
    """The batches of one client in one round. S is the static bound of local steps; the client
    takes the first `num_steps`.
    """

    positions: dict[str, Int[Array, "S b"]]  # positions in `Client.rows`, by stream
    masks: dict[str, Bool[Array, "S b"]]  # real rows, by stream
    num_steps: Int[Array, ""]  # steps that the client takes, at most S


class Sampler(NamedTuple):
    """Draws local batches; shapes are static, from the bounds that it was built for.

    Example:
        >>> from fedjax_ssl.federated import labelled_epochs, mixed_epochs
        >>> most = {"max_labelled": 5, "max_unlabelled": 125}
        >>> sampler = mixed_epochs(batch_size=10, local_epochs=5, **most)
        >>> isinstance(sampler, fs.Sampler)
        True
    """

    schedule: Callable[[Key[Array, ""], Client, Now], Schedule]
    # ^ (key, client, round) -> its batches
    reads_sent: bool = False
    # ^ the schedule depends on messages of terms, so it is unknown before the round
    equal_steps: bool = False
    # ^ every training client takes all S steps of its schedule; the loop relies on it
    going_on: Callable[[int], "Sampler"] | None = None
    # ^ (local steps a round) -> the same batches with a fixed number of steps a round; epochs over
    # labelled examples continue from the client's last round


def merged(groups: Params) -> PyTree:
    """Merge parameter groups, parts of a network, into its parameters."""
    if len(groups) == 1:
        return next(iter(groups.values()))
    return unflatten_dict(
        {place: leaf for part in groups.values() for place, leaf in flatten_dict(part).items()}
    )
