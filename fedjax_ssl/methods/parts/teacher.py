"""A mean teacher at every client that follows its student step by step; the server averages teachers as it does models.

After step t, counted on from round to round as the mean over the clients, the teacher g becomes d g + (1 - d) f with
d = min(1 - 1 / (t + 1), decay) and the student f.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.federated import BYTES_PER_NUMBER, count
from fedjax_ssl.federated.method import (
    AtClient,
    AtServer,
    Broadcast,
    PyTree,
    RoundContext,
    RoundResult,
    ServerState,
    Traffic,
)
from fedjax_ssl.objectives import teacher_decay


class Teacher(NamedTuple):
    """The moving average of the student, and the number of steps it has seen."""

    params: PyTree
    model_state: PyTree
    step: Float[Array, ""]


def teacher_at_server() -> AtServer:
    """The server's teacher is the mean of the clients', from which they go on in the next round."""
    return AtServer(
        init=lambda key, params, model_state, everyone: Teacher(params, model_state, jnp.zeros(())),
        prepare=_from_student,
        server_update=lambda teacher, outcome: outcome.local,
    )


def teacher_at_client(decay: float | Array) -> AtClient:
    """The client's teacher starts from the server's and follows the student."""

    def follow(teacher: Teacher, params: PyTree) -> Teacher:
        step = teacher.step + 1.0
        keep = teacher_decay(step, decay)
        averaged = jax.tree.map(lambda old, new: keep * old + (1.0 - keep) * new, teacher.params, params)
        return Teacher(averaged, teacher.model_state, step)

    return AtClient(start=lambda teacher, params, model_state, kept: teacher, after_step=follow)


def teacher_network(term: str) -> Callable[[ServerState], tuple[PyTree, PyTree]]:
    """State -> the teacher that this term keeps; before its first step there is none, but the student."""

    def network(state: ServerState) -> tuple[PyTree, PyTree]:
        teacher, student = state.terms[term], (state.params["model"], state.model_state)
        return jax.tree.map(
            lambda taught, own: jnp.where(teacher.step > 0, taught, own), (teacher.params, teacher.model_state), student
        )

    return network


def teacher_traffic(outcome: RoundResult) -> Traffic:
    """The teacher goes both ways beside the student."""
    round = outcome.round
    teacher = sum(leaf.size for leaf in jax.tree.leaves((round.params, round.model_state)))
    both_ways = count(jnp.sum(round.valid), BYTES_PER_NUMBER * teacher)
    return Traffic(both_ways, both_ways)


def _from_student(teacher: Teacher, round: RoundContext) -> tuple[Broadcast, Teacher]:
    """In the stage's first round the teacher is the student."""
    fresh = Teacher(round.params, round.model_state, jnp.zeros(()))
    return Broadcast(), jax.tree.map(lambda new, old: jnp.where(round.number == 0, new, old), fresh, teacher)
