"""FedSiam: mean-teacher consistency at the clients; student and teacher are averaged separately.

References:
    Long et al., FedSiam: Towards adaptive federated semi-supervised learning, arXiv 2012.03292; in the form of
    Scott et al., TMLR 2023, arXiv 2210.06434.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.federated import (
    BYTES_PER_NUMBER,
    AtClient,
    AtServer,
    Client,
    ForLog,
    Method,
    Outcome,
    Round,
    Sent,
    ServerState,
    Setup,
    Step,
    Term,
    Traffic,
    count,
)
from fedjax_ssl.federated.method import PyTree
from fedjax_ssl.federated.terms import augmented_view
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.two_stages import after_labelled_stage, mixed_stage
from fedjax_ssl.objectives import batch_cross_entropy, consistency, consistency_ramp, teacher_decay

TERM = "mean_teacher"


class Teacher(NamedTuple):
    """The moving average of the student, and the number of steps it has seen."""

    params: PyTree
    model_state: PyTree
    step: Float[Array, ""]


def fedsiam(
    setup: Setup,
    *,
    warmup_rounds: int = 0,
    consistency_weight: float = 100.0,
    ramp_rounds: int = 5,
    head_weight: float = 0.01,
    decay: float = 0.97,
    unlabelled_clients: bool = False,
    predict_with: str = "student",
) -> Method:
    """Mean teacher in every client. The network needs a second head (model option `aux_head=True`).

    The loss is the cross-entropy of the labelled rows, plus head_weight times the squared distance of the two heads'
    logits, plus a ramped weight times the squared distance of the second head's probabilities from the teacher's on
    another augmentation of the same examples.

    Args:
        setup: the run.
        warmup_rounds: rounds of labels-only training before.
        consistency_weight: largest weight of the consistency loss.
        ramp_rounds: rounds in which the weight rises.
        head_weight: weight of the distance between the heads.
        decay: largest decay of the teacher.
        unlabelled_clients: let clients without labels take part (the authors' code does not).
        predict_with: "student" or "teacher".

    Raises:
        ValueError: if `predict_with` is something else, `ramp_rounds` is below 1, or the network has no second head.
    """
    if predict_with not in ("student", "teacher"):
        raise ValueError(f"fedsiam: predict_with is {predict_with!r}; allowed: student, teacher")
    if ramp_rounds < 1:
        raise ValueError(f"fedsiam: ramp_rounds is {ramp_rounds}; it must be at least 1")
    view = augmented_view(setup, "mixed")

    def init(key: Array, params: PyTree, model_state: PyTree, everyone: Client) -> Teacher:
        return Teacher(params, model_state, jnp.zeros(()))

    def prepare(teacher: Teacher, round: Round) -> tuple[Sent, Teacher]:
        fresh = Teacher(round.params, round.model_state, jnp.zeros(()))
        return Sent(), jax.tree.map(lambda new, old: jnp.where(round.number == 0, new, old), fresh, teacher)

    def loss(step: Step) -> tuple[Array, Teacher]:
        batch, student, teacher = step.streams["mixed"], step.outputs[view.name], step.local
        if student.aux_logits is None:
            raise ValueError("fedsiam needs a network with a second head: set config.model.aux_head = True")
        other = setup.normalize(setup.augment(named_key(step.key, "teacher"), batch.inputs))
        taught, teacher_state = setup.model.apply(
            teacher.params,
            teacher.model_state,
            other,
            train=True,
            key=named_key(step.key, "teacher dropout"),
            mask=batch.mask,
        )
        targets = jax.lax.stop_gradient(jax.nn.softmax(taught.logits))
        ramp = consistency_ramp(step.now.number + 1, consistency_weight, ramp_rounds)
        value = (
            batch_cross_entropy(student.logits, batch.observed, batch.mask)
            + head_weight * consistency(student.logits, student.aux_logits, batch.mask)
            + ramp * consistency(jax.nn.softmax(student.aux_logits), targets, batch.mask)
        )
        return value, teacher._replace(model_state=teacher_state)

    def after_step(teacher: Teacher, params: PyTree) -> Teacher:
        step = teacher.step + 1.0
        keep = teacher_decay(step, decay)
        averaged = jax.tree.map(lambda old, new: keep * old + (1.0 - keep) * new, teacher.params, params)
        return Teacher(averaged, teacher.model_state, step)

    def teacher_network(state: ServerState) -> tuple[PyTree, PyTree]:
        teacher = state.terms[TERM]
        student = (state.params["model"], state.model_state)
        return jax.tree.map(  # before its first step there is no teacher
            lambda taught, own: jnp.where(teacher.step > 0, taught, own), (teacher.params, teacher.model_state), student
        )

    def traffic(outcome: Outcome) -> Traffic:
        round = outcome.round
        teacher = sum(leaf.size for leaf in jax.tree.leaves((round.params, round.model_state)))
        both_ways = count(jnp.sum(round.valid), BYTES_PER_NUMBER * teacher)
        return Traffic(both_ways, both_ways)

    term = Term(
        TERM,
        (view,),
        loss,
        server=AtServer(init, prepare, absorb=lambda teacher, outcome: outcome.local),
        client=AtClient(start=lambda teacher, params, model_state, kept: teacher, after_step=after_step),
        log=ForLog(traffic=traffic),
    )
    stage = mixed_stage(setup, term, "proportional" if unlabelled_clients else "only")
    return after_labelled_stage(setup, stage, warmup_rounds, teacher_network if predict_with == "teacher" else None)
