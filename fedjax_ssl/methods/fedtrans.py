"""Transfer learning from the clients' coarse labels to the server's classes: a baseline of FedMT.

Clients and server never train the same head. First the clients train a network for their coarse labels, then the
server puts a new head for the classes on it. No correspondence between the label spaces is used.

References:
    Transfer learning as an answer to label spaces that differ: Federated learning with mixed-type labels, arXiv
    2210.02042v4. What exactly is done here is our own definition.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import check_choices, check_whole_numbers
from fedjax_ssl.data import WeakLabels
from fedjax_ssl.federated import Method, Setup, Stage, Term, epochs, federated_method
from fedjax_ssl.federated.method import AtServer, Client, Now, Params, PyTree, Round, Sampler, Schedule, Sent, Step
from fedjax_ssl.federated.static_batch_norm import with_static_batch_norm
from fedjax_ssl.federated.terms import augmented_view
from fedjax_ssl.methods.parts.alternating_training import server_training
from fedjax_ssl.methods.parts.channel_terms import learns
from fedjax_ssl.objectives import batch_cross_entropy

COARSE = "coarse"  # the stream of examples with a coarse label
HEAD, SECOND_HEAD = "head", "aux_head"  # names of the two heads in the network's parameters
BODY = "body"  # the parameter group of everything but the main head, so with the second one
# What has no loss in a stage is in a group of its own and takes no step there, not even one of weight decay.
GROUPS = (HEAD, BODY)


def fedtrans(
    setup: Setup,
    *,
    coarse_rounds: int = 50,
    finetune: str = "all",
    server_batch_size: int = 10,
    server_epochs: int = 5,
    static_batch_norm: bool = True,
) -> Method:
    """Transfer learning: coarse labels at clients, then a new head for the server's classes.

    The network needs a second head (model option `aux_head=True`), whose first outputs are for the coarse labels.
    Clients without coarse labels, and those whose weak labels are sets, take no part. Until `coarse_rounds` are over
    the head that predicts is untrained.

    Args:
        setup: the run.
        coarse_rounds: rounds in which the clients train the network and the second head on their coarse labels; after
            them only the server trains.
        finetune: what the server trains: "all", or only the main "head".
        server_batch_size: labelled examples per step at the server.
        server_epochs: epochs per round at the server.
        static_batch_norm: statistics of batch norm layers by a pass over the data, see
            `fedjax_ssl.federated.static_batch_norm`.

    Raises:
        ValueError: for a setting outside these, or a network without a second head; when a round is traced, for a
            federation without coarse labels, without examples at the server, or with more weak labels than outputs.
    """
    check_choices(("all", "head"), finetune=finetune)
    check_whole_numbers(coarse_rounds=coarse_rounds)
    _check_heads(setup)
    server = server_training(setup, server_batch_size, server_epochs)
    (supervised,) = server.terms
    terms: tuple[Term, ...] = (supervised._replace(group=HEAD),)
    if finetune == "all":
        terms = (*terms, _silent(supervised)._replace(name="supervised body", group=BODY))
    stages = (coarse_stage(setup, coarse_rounds), Stage((), None, server=server._replace(terms=terms)))
    method = federated_method(
        setup, stages, groups=GROUPS, split=_split, combine=_combine, needs=("coarse", "server"), needs_all=True
    )
    if not static_batch_norm:
        return method
    return with_static_batch_norm(method, setup.model, setup.normalize, lambda state: _combine(state.params))


def coarse_stage(setup: Setup, rounds: int) -> Stage:
    """Rounds of federated averaging on coarse labels, by the clients that have some.

    Args:
        setup: the run.
        rounds: how many.
    """

    def count_labels(clients: Client) -> Int[Array, " p"]:
        nothing = jnp.zeros_like(clients.num_labelled)
        if clients.weak is None:
            return nothing
        told = learns(clients._replace(num_labelled=nothing))  # class labels are of another space, and do not count
        return jnp.where(told & ~clients.weak.from_sets, clients.weak.num_examples, 0)

    sampler = coarse_epochs(setup.batch_size, setup.local_epochs, setup.max_known)
    return Stage((coarse_term(setup),), sampler, labelled_quota="only", rounds=rounds, count_labels=count_labels)


def coarse_term(setup: Setup) -> Term:
    """Cross-entropy of the second head's outputs on the coarse labels of stream "coarse", weakly augmented."""
    view = augmented_view(setup, COARSE)

    def prepare(state: PyTree, round: Round) -> tuple[Sent, PyTree]:
        _check_federation(setup, round.clients.weak)
        return Sent(), state

    def loss(step: Step) -> Array:
        batch, weak, logits = step.streams[COARSE], step.client.weak, step.outputs[view.name].aux_logits
        assert weak is not None and batch.weak is not None and logits is not None, "see `_check_federation`"
        return coarse_cross_entropy(logits, batch.weak, weak.num_observations, batch.mask)

    return Term("coarse", (view,), loss, group=BODY, server=AtServer(prepare=prepare))


def coarse_cross_entropy(
    logits: Float[Array, "b K"], labels: Int[Array, " b"], num_observations: Int[Array, ""], mask: Bool[Array, " b"]
) -> Float[Array, ""]:
    """Cross-entropy of the first J of K outputs, averaged over the batch.

    Args:
        logits: scores of the second head.
        labels: coarse label of every row, below J; -1 = none.
        num_observations: J. The other outputs have probability 0 and no gradient.
        mask: rows that belong to the batch.
    """
    used = jnp.arange(logits.shape[1], dtype=jnp.int32) < num_observations
    # Not -inf: where a client has no coarse labels at all, a row of -inf alone would be NaN.
    return batch_cross_entropy(jnp.where(used, logits, jnp.finfo(logits.dtype).min), labels, mask)


def coarse_epochs(batch_size: int, local_epochs: int, max_examples: int) -> Sampler:
    """Epochs over the examples with a weak label and no class label: stream "coarse", the last partial batch kept.

    Args:
        batch_size: examples per local step.
        local_epochs: passes over these examples per round.
        max_examples: static bound of such examples per client.
    """

    def count(client: Client) -> Int[Array, ""]:
        return jnp.zeros_like(client.num_labelled) if client.weak is None else client.weak.num_examples

    from_first = epochs(COARSE, count, batch_size, local_epochs, max_examples)

    def schedule(key: Array, client: Client, now: Now) -> Schedule:
        drawn = from_first.schedule(key, client, now)
        # In a client's table they follow the examples with a class label.
        positions = jnp.where(drawn.masks[COARSE], drawn.positions[COARSE] + client.num_labelled, 0)
        return drawn._replace(positions={COARSE: positions})

    return Sampler(schedule)


def _silent(term: Term) -> Term:
    """The same gradient with a loss of 0, so that a loss which moves two groups counts once in the log."""

    def loss(step: Step) -> Array:
        value = term.loss(step)
        return value - jax.lax.stop_gradient(value)

    return term._replace(loss=loss)


def _split(params: PyTree) -> Params:
    return {HEAD: {HEAD: params[HEAD]}, BODY: {name: part for name, part in params.items() if name != HEAD}}


def _combine(groups: Params) -> PyTree:
    return {**groups[BODY], **groups[HEAD]}


def _check_heads(setup: Setup) -> None:
    params, _ = jax.eval_shape(setup.model.init, jax.random.key(0))
    if not {HEAD, SECOND_HEAD} <= set(params):
        raise ValueError(
            f"fedtrans needs a network with a second head: set config.model.aux_head = True; the parameters of "
            f"this one are {', '.join(sorted(params))}, without {HEAD} or {SECOND_HEAD}"
        )


def _check_federation(setup: Setup, weak: WeakLabels | None) -> None:
    """What shapes tell of a federation; how many labels there are is known in a traced round too."""
    if weak is None:
        raise ValueError("fedtrans needs clients with coarse labels, for example config.supervision.name = 'coarse'")
    if not setup.max_server:
        raise ValueError("fedtrans needs class labels at the server, for example config.supervision.server_labels = 20")
    most = weak.matrix.shape[1]
    if most > setup.num_classes:
        raise ValueError(
            f"clients have up to {most} coarse labels or sets, but the second head of fedtrans has only "
            f"{setup.num_classes} outputs, one per class; use at most so many"
        )
