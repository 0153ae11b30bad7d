"""Networks with a second head, for coarse labels of the clients, beside the one for the server's
classes.

What the baselines of FedMT have in common that use no correspondence: transfer learning and FedRep.
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

COARSE = "coarse"  # the stream of examples with a coarse label
# names of the two heads in the network's parameters
HEAD = "head"
SECOND_HEAD = "aux_head"
BODY = "body"  # the parameter group of everything else; streams that train a group have its name


def count_coarse(clients: Client) -> Int[Array, " p"]:
    """Count the examples with a coarse label that says something about the class."""
    nothing = jnp.zeros_like(clients.num_labelled)
    if clients.weak is None:
        return nothing
    # class labels are of another space, and do not count
    told = learns(clients._replace(num_labelled=nothing))
    return jnp.where(told & ~clients.weak.from_sets, clients.weak.num_examples, 0)


def coarse_term(setup: Setup, method: str, group: str, stream: str = COARSE) -> Term:
    """Return the cross-entropy of the second head's outputs on the coarse labels of a stream,
    weakly augmented.

    Args:
        setup: the run.
        method: its name, for messages.
        group: parameters that the loss moves.
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
    # Not -inf: where a client has no coarse labels at all, a row of -inf alone would be NaN.
    return batch_cross_entropy(jnp.where(used, logits, jnp.finfo(logits.dtype).min), labels, mask)


def coarse_epochs(
    batch_size: int, local_epochs: int, max_examples: int, stream: str = COARSE
) -> Sampler:
    """Return a sampler of epochs over the examples with a weak label and no class label, the last
    partial batch kept.

    Args:
        batch_size: examples per local step.
        local_epochs: passes over these examples per round.
        max_examples: static bound of such examples per client.
        stream: its name.
    """

    def count(client: Client) -> Int[Array, ""]:
        return (
            jnp.zeros_like(client.num_labelled) if client.weak is None else client.weak.num_examples
        )

    from_first = epochs(stream, count, batch_size, local_epochs, max_examples)

    def schedule(key: Array, client: Client, now: Now) -> Schedule:
        drawn = from_first.schedule(key, client, now)
        # In a client's table they follow the examples with a class label.
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
    """Refuse a federation without coarse labels, as far as its shapes tell, which a traced round
    knows too.
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
    """Put each head named here in a group of its own, and all else in the body's.

    Args:
        *groups: parameter groups in the order of their steps; heads, and `BODY`.
    """

    def split(params: PyTree) -> Params:
        heads = {group: {group: params[group]} for group in groups if group != BODY}
        return {**heads, BODY: {name: part for name, part in params.items() if name not in heads}}

    return ParameterGroups(groups, split=split)
