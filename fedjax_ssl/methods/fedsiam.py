"""FedSiam: mean-teacher consistency at the clients; student and teacher are averaged separately.

The student f has two heads, f1 and f2; the teacher g is a moving average of the student. With two
augmentations a, b of the same batch B of examples, K classes, and the number r of the round, a
client minimizes

    1/|B| sum over labelled CE(f1(a(x)), y) + head_weight / (|B| K) sum |f1(a(x)) - f2(a(x))|^2
        + ramp(r) / (|B| K) sum |softmax f2(a(x)) - softmax g1(b(x))|^2,

ramp(r) = consistency_weight exp(-5 (1 - min(r, R) / R)^2) with R = ramp_rounds. After step t,
counted over all rounds as the mean over the clients, g becomes d g + (1 - d) f with d = min(1 - 1 /
(t + 1), decay).

References:
    Long et al., FedSiam: Towards adaptive federated semi-supervised learning, arXiv 2012.03292; in
    the form of Scott et al., TMLR 2023, arXiv 2210.06434.
"""

from dataclasses import dataclass
from typing import Literal

import jax
from jaxtyping import Array

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Recipe, Setup, Step
from fedjax_ssl.methods.parts.recommended import AT_CLIENTS
from fedjax_ssl.methods.parts.setting_types import Count, CountOrZero, Decay, Weight
from fedjax_ssl.methods.parts.terms import augmented_view
from fedjax_ssl.methods.parts.two_stages import after_labelled_stage, mixed_stage
from fedjax_ssl.methods.parts.views_and_teachers import (
    Teacher,
    second_pass,
    taught_term,
    teacher_network,
)
from fedjax_ssl.objectives import batch_cross_entropy, consistency, consistency_ramp

RECOMMENDED = {"fedsiam": {"per_client": {**AT_CLIENTS, "model.aux_head": True}}}

TERM = "mean_teacher"


@checked
@dataclass(frozen=True)
class FedSiam:
    """Settings of FedSiam.

    Attributes:
        warmup_rounds: rounds of labels-only training at the start.
        consistency_weight: largest weight of the consistency loss.
        ramp_rounds: rounds in which the weight rises.
        head_weight: weight of the distance between the heads.
        decay: largest decay of the teacher.
        unlabelled_clients: let clients without labels take part (the authors' code does not).
        predict_with: "student" or "teacher".
    """

    warmup_rounds: CountOrZero = 0
    consistency_weight: Weight = 100.0
    ramp_rounds: Count = 5
    head_weight: Weight = 0.01
    decay: Decay = 0.97
    unlabelled_clients: bool = False
    predict_with: Literal["student", "teacher"] = "student"


def fedsiam(setup: Setup, settings: FedSiam) -> Recipe:
    """Mean teacher in every client. The network needs a second head (model option `aux_head=True`).

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside its range, or a network without a second head.
    """
    view = augmented_view(setup, "mixed")

    def loss(step: Step) -> tuple[Array, Teacher]:
        batch = step.streams["mixed"]
        student = step.outputs[view.name]
        teacher = step.local
        if student.aux_logits is None:
            raise ValueError(
                "fedsiam needs a network with a second head: set config.model.aux_head = True"
            )
        network = teacher.params, teacher.model_state
        taught = second_pass(setup, step, *network, "mixed", ("teacher", "teacher dropout"))
        targets = jax.lax.stop_gradient(jax.nn.softmax(taught.logits))
        ramp = consistency_ramp(
            step.now.number + 1, settings.consistency_weight, settings.ramp_rounds
        )
        value = (
            batch_cross_entropy(student.logits, batch.observed, batch.mask, loss=setup.loss)
            + settings.head_weight * consistency(student.logits, student.aux_logits, batch.mask)
            + ramp * consistency(jax.nn.softmax(student.aux_logits), targets, batch.mask)
        )
        return value, teacher._replace(model_state=taught.model_state)

    term = taught_term(TERM, (view,), loss, settings.decay)
    stage = mixed_stage(setup, term, "proportional" if settings.unlabelled_clients else "only")
    return after_labelled_stage(
        setup,
        stage,
        settings.warmup_rounds,
        teacher_network(TERM) if settings.predict_with == "teacher" else None,
    )
