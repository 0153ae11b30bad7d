"""The contract every method meets, and the pieces recipes are composed of.

A `Method` is a pair of pure functions and a predictor. Almost every method is built by
`fedjax_ssl.federated.federated_method` from `Term`s: a term is what a paper adds to federated averaging. Shapes:
C clients, p = cohort size, n = padded examples per client, b = examples of one stream in one local batch, K classes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.data import WeakLabels
from fedjax_ssl.models import Outputs

PyTree = Any
Params = dict[str, PyTree]  # parameter group -> tree; one group "model" unless the method declares more
Metrics = dict[str, Float[Array, ""]]


class Method(NamedTuple):
    """A federated learning method: pure functions, all of them jit-able, scan-able and vmap-able."""

    init: Callable[..., "ServerState"]  # (key, data) -> state
    round: Callable[..., tuple["ServerState", Metrics]]  # (run key, state, data) -> (state, info)
    predict: Callable[..., Array]  # (state, raw inputs [n, ...]) -> log-probabilities [n, K]
    embed: Callable[..., Array] | None = None  # (state, raw inputs [n, ...]) -> features [n, d]; None: it has none
    needs: tuple[str, ...] = ("labels",)  # it learns from any of these: see `FederatedData.kinds`
    needs_all: bool = False  # it needs every one of them


class ServerState(NamedTuple):
    """All that is carried from one round to the next; a checkpoint is this tree."""

    round: Int[Array, ""]  # rounds done so far
    params: Params  # global parameters, by group
    model_state: PyTree  # batch statistics, averaged like the parameters; {} without
    optimizer: PyTree  # state of the federated optimizer, control variates of all clients included
    terms: dict[str, PyTree]  # state of every term, by term name


class Client(NamedTuple):
    """One client as its local training sees it (with a leading axis p: the cohort)."""

    id: Int[Array, ""]
    index: Int[Array, " n"]  # type: ignore[assignment]  # rows of `FederatedData.inputs`, labelled first, padding 0
    observed: Int[Array, " n"]  # observed class label of every example, -1 = nothing or padding
    num_labelled: Int[Array, ""]
    num_examples: Int[Array, ""]
    sent: dict[str, PyTree]  # what each term sent for this round
    variates: PyTree  # what the federated optimizer sent for this round
    weak: WeakLabels | None = None  # its coarse labels or sets, without the axis C; None where no client has any

    @property
    def num_known(self) -> Array:
        """Examples with a class label or a weak label; they come first in `index`."""
        return self.num_labelled if self.weak is None else self.num_labelled + self.weak.num_examples


class Round(NamedTuple):
    """What a term may use to prepare a round. Ground-truth labels are not among it, so they cannot leak."""

    key: Key[Array, ""]  # run key folded with the round
    run_key: Key[Array, ""]  # the same in every round of a run
    number: Int[Array, ""]  # rounds since the stage began
    clients: Client  # the cohort, leading axis p, in increasing order of client id
    valid: Bool[Array, " p"]  # False where the cohort has fewer clients than slots
    everyone: Client  # all C clients, for terms that act on the whole federation
    params: PyTree  # the network's parameters as broadcast
    groups: Params  # the same by parameter group
    model_state: PyTree
    inputs: Array  # [N, ...] raw inputs of all examples


class Stream(NamedTuple):
    """One group of slots in a local batch."""

    position: Int[Array, " b"]  # place in `Client.index`
    mask: Bool[Array, " b"]  # False on padding
    observed: Int[Array, " b"]  # observed class label, -1 = nothing
    inputs: Array  # [b, ...] raw
    weak: Int[Array, " b"] | None = None  # observed weak label, -1 = nothing; None where no client has any


class View(NamedTuple):
    """One set of inputs of the step's forward pass. Terms that ask for the same name share one forward pass."""

    name: str
    stream: str  # whose mask says which rows are real
    build: Callable[[Key[Array, ""], dict[str, Stream]], Array]  # -> float inputs [b, ...]


class Step(NamedTuple):
    """What a term's loss sees: one client, one batch, after the shared forward pass."""

    outputs: dict[str, Outputs]  # by view
    inputs: dict[str, Array]  # by view, as the network saw them
    streams: dict[str, Stream]
    client: Client
    local: PyTree  # this term's local state
    params: PyTree  # network parameters of this step, differentiable
    groups: Params  # the same by parameter group, for losses on one group (FedMatch's norms)
    model_state: PyTree
    key: Key[Array, ""]
    round: Int[Array, ""]  # rounds since the stage began
    number: Int[Array, ""]  # local steps before this one


class Trained(NamedTuple):
    """A client after local training, for `Term.collect`."""

    client: Client
    params: PyTree
    groups: Params
    model_state: PyTree
    inputs: Array  # [N, ...] raw inputs of all examples
    key: Key[Array, ""]


class Traffic(NamedTuple):
    """Bytes that a term sends beside the model, summed over the cohort."""

    down: Float[Array, ""] | float
    up: Float[Array, ""] | float


def _no_state(key: Key[Array, ""], params: PyTree, model_state: PyTree, everyone: Client) -> PyTree:
    return ()


def _send_nothing(state: PyTree, round: Round) -> tuple[PyTree, PyTree]:
    return (), state


def _no_local(state: PyTree, params: PyTree, model_state: PyTree) -> PyTree:
    return ()


def _keep_local(local: PyTree, params: PyTree) -> PyTree:
    return local


def _everybody(sent: PyTree, round: Round) -> Array:
    return round.valid


def _collect_nothing(trained: Trained) -> PyTree:
    return ()


def _absorb_nothing(state: PyTree, local: PyTree, uploads: PyTree, counts: Array, round: Round) -> PyTree:
    return state


def _diagnose_nothing(sent: PyTree, truth: Array, round: Round) -> Metrics:
    return {}


def _no_traffic(round: Round) -> Traffic:
    return Traffic(0.0, 0.0)


class Term(NamedTuple):
    """What a method adds to federated averaging. Only `name`, `views` and `loss` are required.

    Order within a round: `prepare` (server, across the cohort), per client `start`, then for every local step `loss`
    and `after_step`, then `collect`; at the end `absorb` (server) and, for the log only, `diagnose` and `traffic`.
    """

    name: str
    views: tuple[View, ...]
    loss: Callable[[Step], tuple[Array, PyTree]]  # -> (scalar, local state); the scalar is differentiated
    weight: float | Array = 1.0
    group: str = "model"  # the parameter group whose gradient this loss moves
    init: Callable[[Key[Array, ""], PyTree, PyTree, Client], PyTree] = _no_state
    # ^ (key, network parameters, model state, everyone) -> state
    prepare: Callable[[PyTree, Round], tuple[PyTree, PyTree]] = _send_nothing  # -> (sent, leading axis p; state)
    takes_part: Callable[[PyTree, Round], Array] = _everybody
    # ^ (sent, round) -> bool [p]: who has something to train on; a client for whom no term says so takes no step
    start: Callable[[PyTree, PyTree, PyTree], PyTree] = _no_local  # (state, params, model_state) -> local state
    after_step: Callable[[PyTree, PyTree], PyTree] = _keep_local  # (local state, new params) -> local state
    collect: Callable[[Trained], PyTree] = _collect_nothing  # -> upload
    absorb: Callable[[PyTree, PyTree, PyTree, Array, Round], PyTree] = _absorb_nothing
    # ^ (state, mean local state, uploads with leading axis p, which clients trained and were kept, round) -> state
    diagnose: Callable[[PyTree, Array, Round], Metrics] = _diagnose_nothing  # (sent, true labels [p, n], round)
    traffic: Callable[[Round], Traffic] = _no_traffic


class ServerTraining(NamedTuple):
    """Training at the server on its own labelled examples, after the clients' models were averaged."""

    terms: tuple[Term, ...]
    sampler: "Sampler"


class Stage(NamedTuple):
    """A stretch of rounds with its own terms, batches and cohort; the server state goes on from stage to stage.

    A round trains the clients, if there are terms for them, and then the server, if it has terms.
    """

    terms: tuple[Term, ...]
    sampler: "Sampler | None"
    labelled_quota: str = "proportional"  # see `fedjax_ssl.federated.sample_cohort`
    rounds: int | None = None  # None: until the end
    count_labels: Callable[[Client], Array] = lambda clients: clients.num_labelled  # for the quota
    server: ServerTraining | None = None


class Schedule(NamedTuple):
    """The batches of one client in one round; S is the static bound of local steps, of which it takes the first."""

    positions: dict[str, Int[Array, "S b"]]  # by stream
    masks: dict[str, Bool[Array, "S b"]]
    num_steps: Int[Array, ""]


class Sampler(NamedTuple):
    """How local batches are drawn: `schedule(key, client)`, with static shapes from the bounds it was built for."""

    schedule: Callable[[Key[Array, ""], Client], Schedule]
    reads_sent: bool = False  # the schedule depends on what terms sent, so that nothing is known of it before a round
