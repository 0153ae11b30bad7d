"""A moving average of the global network over the rounds, for predictions: it changes nothing in training.

After round t = 1, 2, .. the average g of the global networks f_t is d g + (1 - d) f_t with d = min(1 - 1/t, decay): the
plain mean at first, so that the initial network has no part in it. Batch statistics are averaged likewise. FixMatch,
UDA and MixMatch predict with such an average over single steps; here the server has one model per round.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.federated import Term
from fedjax_ssl.federated.method import AtServer, PyTree, RoundResult, ServerState, never
from fedjax_ssl.objectives import teacher_decay

TERM = "moving_average"


class Average(NamedTuple):
    """The average, and the number of networks in it."""

    params: PyTree
    model_state: PyTree
    rounds: Float[Array, ""]


def moving_average_term(decay: float | Array) -> Term:
    """A term without a loss that holds the average at the server; of those who train last in a round."""

    def follow(average: Average, outcome: RoundResult) -> Average:
        rounds = average.rounds + 1.0
        keep = teacher_decay(rounds - 1.0, decay)
        new = outcome.after.params["model"], outcome.after.model_state
        old = average.params, average.model_state
        params, model_state = jax.tree.map(
            lambda one, other: keep.astype(one.dtype) * one + (1.0 - keep).astype(one.dtype) * other, old, new
        )
        return Average(params, model_state, rounds)

    server = AtServer(
        init=lambda key, params, model_state, everyone: Average(params, model_state, jnp.zeros(())),
        participates=never,
        server_update=follow,
    )
    return Term(TERM, (), lambda step: jnp.zeros(()), server=server)


def averaged_network(state: ServerState) -> tuple[PyTree, PyTree]:
    """The average; the initial network before round 0."""
    average: Average = state.terms[TERM]
    return average.params, average.model_state
