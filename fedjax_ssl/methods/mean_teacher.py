"""Mean teacher, federated: the student agrees with a teacher, the moving average of the student over local steps.

With the predictions p of the student f and q of the teacher g for two noisy views of the same examples, B_U examples, K
classes, and weights w_s, w_u, a local step minimizes

    w_s 1/B sum over labelled CE(y, p) + w_u g(r) 1/(B_U K) sum over all ||p - q||^2

with g(r) = exp(-5 (1 - min(r, R) / R)^2) in round r = 1, 2, .. After step t, counted on from round to round, the
teacher becomes d g + (1 - d) f with d = min(1 - 1 / (t + 1), decay). Students and teachers are averaged separately.
`fedsiam` is this with a second head for the consistency loss.

References:
    Tarvainen and Valpola, Mean teachers are better role models, NeurIPS 2017, arXiv 1703.01780: section 2; weight,
    decay and ramp from its CIFAR-10 runs, the ramp's epochs being rounds here.
"""

import jax
from jaxtyping import Array

from fedjax_ssl.checks import check_choices, check_numbers, check_whole_numbers
from fedjax_ssl.federated import Method, Setup, Step, Term
from fedjax_ssl.federated.method import ForLog
from fedjax_ssl.federated.terms import augmented_view
from fedjax_ssl.methods.parts.consistency_training import (
    CONSISTENCY,
    UNLABELLED,
    Shared,
    consistency_method,
    second_pass,
)
from fedjax_ssl.methods.parts.teacher import (
    Teacher,
    teacher_at_client,
    teacher_at_server,
    teacher_network,
    teacher_traffic,
)
from fedjax_ssl.objectives import consistency, consistency_ramp


def mean_teacher(
    setup: Setup,
    *,
    decay: float | Array = 0.999,
    predict_with: str = "teacher",
    ramp_rounds: int = 5,
    unlabelled_weight: float | Array = 100.0,
    labelled_weight: float | Array = 1.0,
    unlabelled_ratio: int = 3,
    labelled_too: bool = True,
    server_turn: str = "before",
    server_batch_size: int = 100,
    server_epochs: int = 1,
) -> Method:
    """Mean teacher at the clients, or at clients without labels beside a server that has some.

    The teacher is sent beside the student, which doubles the traffic.

    Args:
        setup: the run.
        decay: largest decay of the teacher, in [0, 1).
        predict_with: "teacher" or "student".
        ramp_rounds: R; 1: the full weight from the start.
        unlabelled_weight: w_u.
        labelled_weight: w_s.
        unlabelled_ratio: examples of the consistency loss per labelled one in a step.
        labelled_too: the consistency loss is about labelled examples too, as in the paper.
        server_turn: as in `fixmatch`, like the next two.
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.

    Raises:
        ValueError: for a setting outside these, or a federation with nothing to learn from.
    """
    check_numbers("[0, 1)", decay=decay)
    check_choices(("teacher", "student"), predict_with=predict_with)
    check_whole_numbers(ramp_rounds=ramp_rounds)
    shared = Shared(
        labelled_weight=labelled_weight,
        unlabelled_weight=unlabelled_weight,
        unlabelled_ratio=unlabelled_ratio,
        labelled_too=labelled_too,
        ema_decay=0.0,  # the teacher is a moving average already
        server_turn=server_turn,
        server_batch_size=server_batch_size,
        server_epochs=server_epochs,
    )
    weak = augmented_view(setup, UNLABELLED)

    def loss(step: Step) -> tuple[Array, Teacher]:
        teacher: Teacher = step.local
        taught, teacher_state = second_pass(setup, step, teacher.params, teacher.model_state)
        targets = jax.lax.stop_gradient(jax.nn.softmax(taught))
        value = consistency(jax.nn.softmax(step.outputs[weak.name].logits), targets, step.streams[UNLABELLED].mask)
        ramp = consistency_ramp(step.now.number + 1, 1.0, ramp_rounds).astype(value.dtype)
        return ramp * value, teacher._replace(model_state=teacher_state)

    server, client = teacher_at_server(), teacher_at_client(decay)
    term = Term(CONSISTENCY, (weak,), loss, server=server, client=client, log=ForLog(traffic=teacher_traffic))
    network = teacher_network(CONSISTENCY) if predict_with == "teacher" else None
    return consistency_method(setup, shared, term, network=network)
