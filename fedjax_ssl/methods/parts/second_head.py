"""Networks with a second head for the clients' coarse labels, besides the head for the server's
classes.

Shared by the baselines of FedMT that use no correspondence: transfer learning and FedRep.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.data import WeakLabels
from fedjax_ssl.federated import (
    Client,
    ParameterGroups,
    Sampler,
    Schedule,
    Setup,
    Step,
    Term,
    epochs,
)
from fedjax_ssl.federated.contract import (
    AtServer,
    Broadcast,
    Now,
    Params,
    PyTree,
    RoundContext,
)
from fedjax_ssl.methods.parts.channel_terms import learns
from fedjax_ssl.methods.parts.terms import augmented_view
from fedjax_ssl.objectives import batch_cross_entropy

COARSE = "coarse"  # stream of the examples with a coarse label
# Names of the two heads in the network's parameters.
HEAD = "head"
SECOND_HEAD = "aux_head"
BODY = "body"  # parameter group of everything else; a stream that trains one group has its name


def count_coarse(clients: Client) -> Int[Array, " p"]:
    """Count the examples whose coarse label says something about the class."""
    nothing = jnp.zeros_like(clients.num_labelled)
    if clients.weak is None:
        return nothing
    # Class labels are in another space and do not count.
    told = learns(clients._replace(num_labelled=nothing))
    return jnp.where(told & ~clients.weak.from_sets, clients.weak.num_examples, 0)


def coarse_term(setup: Setup, method: str, group: str, stream: str = COARSE) -> Term:
    """Return the cross-entropy of the second head's outputs on the coarse labels of a stream,
    weakly augmented.

    Args:
        setup: the run.
        method: name of the method, for messages.
        group: parameter group that the loss moves.
        stream: stream of the batches; the term has its name.
    """
    view = augmented_view(setup, stream)

    def prepare(state: PyTree, context: RoundContext) -> tuple[Broadcast, PyTree]:
        _check_federation(setup, method, context.clients.weak)
        return Broadcast(), state

    def loss(step: Step) -> Array:
        batch = step.streams[stream]
        weak = step.client.weak
        logits = step.outputs[view.name].aux_logits
        assert weak is not None and batch.weak is not None and logits is not None, (
            "see `_check_federation`"
        )
        return coarse_cross_entropy(logits, batch.weak, weak.num_observations, batch.mask)

    return Term(stream, (view,), loss, group=group, server=AtServer(prepare=prepare))


def coarse_cross_entropy(
    logits: Float[Array, "b K"],
    labels: Int[Array, " b"],
    num_observations: Int[Array, ""],
    mask: Bool[Array, " b"],
) -> Float[Array, ""]:
    """Return the cross-entropy of the first J of K outputs, averaged over the batch.

    Args:
        logits: scores of the second head.
        labels: coarse label of every row, below J; -1 = none.
        num_observations: J. The other outputs have probability 0 and no gradient.
        mask: rows that belong to the batch.
    """
    used = jnp.arange(logits.shape[1], dtype=jnp.int32) < num_observations
    # Not -inf: for a client without coarse labels, a row of -inf alone would give NaN.
    return batch_cross_entropy(jnp.where(used, logits, jnp.finfo(logits.dtype).min), labels, mask)


def coarse_epochs(
    batch_size: int, local_epochs: int, max_examples: int, stream: str = COARSE
) -> Sampler:
    """Return a sampler of epochs over the examples with a weak label and no class label, with the
    last partial batch.

    Args:
        batch_size: examples per local step.
        local_epochs: passes over these examples per round.
        max_examples: static bound of such examples per client.
        stream: name of the stream.
    """

    def count(client: Client) -> Int[Array, ""]:
        return (
            jnp.zeros_like(client.num_labelled) if client.weak is None else client.weak.num_examples
        )

    from_first = epochs(stream, count, batch_size, local_epochs, max_examples)

    def schedule(key: Array, client: Client, now: Now) -> Schedule:
        drawn = from_first.schedule(key, client, now)
        # In a client's table these examples follow those with a class label.
        positions = jnp.where(drawn.masks[stream], drawn.positions[stream] + client.num_labelled, 0)
        return drawn._replace(positions={stream: positions})

    return Sampler(schedule)


def check_heads(setup: Setup, method: str) -> None:
    """Raise ValueError for a network without a second head."""
    params, _ = jax.eval_shape(setup.model.init, jax.random.key(0))
    if not {HEAD, SECOND_HEAD} <= set(params):
        raise ValueError(
            f"{method} needs a network with a second head: set config.model.aux_head = True; the "
            f"parameters of this one are {', '.join(sorted(params))}, without {HEAD} or "
            f"{SECOND_HEAD}"
        )


def _check_federation(setup: Setup, method: str, weak: WeakLabels | None) -> None:
    """Raise ValueError for a federation without coarse labels, as far as shapes tell, which also
    works in a traced round.
    """
    if weak is None:
        raise ValueError(
            f"{method} needs clients with coarse labels, for example config.supervision.name = "
            "'coarse'"
        )
    if not setup.max_server:
        raise ValueError(
            f"{method} needs class labels at the server, for example "
            "config.supervision.server_labels = 20"
        )
    most = weak.matrix.shape[1]
    if most > setup.num_classes:
        raise ValueError(
            f"clients have up to {most} coarse labels or sets, but the second head of {method} "
            f"has only {setup.num_classes} outputs, one per class; use at most {setup.num_classes}"
        )


def by_head(*groups: str) -> ParameterGroups:
    """Put each head named here in its own group, and all else in the body's.

    Args:
        *groups: parameter groups in the order of their steps; heads, and `BODY`.
    """

    def split(params: PyTree) -> Params:
        heads = {group: {group: params[group]} for group in groups if group != BODY}
        return {**heads, BODY: {name: part for name, part in params.items() if name not in heads}}

    return ParameterGroups(groups, split=split)
