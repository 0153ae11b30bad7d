"""Views, further forward passes and mean teachers, for methods that make predictions consistent.

Used by FixMatch and similar methods (`fedjax_ssl.methods.consistency`), SAGE, FedSiam, FedMatch,
FedLLP-VAT, SemiFL and FedMT.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.federated import (
    RoundResult,
    ServerState,
    Setup,
    Step,
    Term,
    View,
)
from fedjax_ssl.federated.contract import (
    AtClient,
    AtServer,
    Broadcast,
    LocalStep,
    Metrics,
    PyTree,
    RoundContext,
    StepTaken,
    TakeStep,
    merged,
)
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.terms import (
    UNLABELLED,
    PseudoLabels,
    diagnose_pseudo_labels,
    network_outputs,
)
from fedjax_ssl.models import Outputs
from fedjax_ssl.objectives import teacher_decay, vat_direction


def strong_view(setup: Setup, stream: str = UNLABELLED) -> View:
    """Return the view of a stream under the run's strong augmentation, or under the weak one if
    there is no strong one.
    """
    strong = setup.strong_augment or setup.augment
    return View(
        f"{stream}/strong",
        stream,
        lambda key, streams: setup.normalize(strong(key, streams[stream].inputs)),
    )


def check_weak_views(setup: Setup, count: int) -> None:
    """Raise ValueError if a method draws more weak views of an example than are stored.

    Args:
        setup: the run.
        count: different views of one example in one step.
    """
    if setup.stored_views is not None and setup.stored_views < count:
        raise ValueError(
            f"the method draws {count} weak views of an example in a step, and the features hold "
            f"{setup.stored_views or 'none'}; encode them with `fedjax-ssl features CONFIG --views "
            f"{count}`"
        )


class SecondPass(NamedTuple):
    """Result of a separate forward pass of a network."""

    inputs: Float[Array, "b ..."]  # inputs as the network saw them
    logits: Float[Array, "b K"]
    model_state: PyTree  # running statistics after the pass


def second_pass(
    setup: Setup,
    step: Step,
    params: PyTree,
    model_state: PyTree,
    stream: str = UNLABELLED,
    keys: tuple[str, str] = ("second view", "second dropout"),
) -> SecondPass:
    """Run a separate training-mode pass of a network over another weakly augmented view of a
    stream.

    Args:
        setup: the run.
        step: the step.
        params: parameters of the network.
        model_state: running statistics of the network.
        stream: stream with the examples.
        keys: names of the random streams of augmentation and dropout.

    Raises:
        ValueError: there is only one view to draw.
    """
    check_weak_views(setup, 2)
    batch = step.streams[stream]
    inputs = setup.normalize(setup.augment(named_key(step.key, keys[0]), batch.inputs))
    key = named_key(step.key, keys[1])
    outputs, state = setup.model.apply(
        params, model_state, inputs, train=True, key=key, mask=batch.mask
    )
    return SecondPass(inputs, outputs.logits, state)


def adversarial_pass(
    setup: Setup,
    step: Step,
    inputs: Float[Array, "b ..."],
    mask: Bool[Array, " b"],
    radius: float | Array,
) -> tuple[Float[Array, "b K"], Float[Array, "b K"]]:
    """Return the scores of inputs x, and of x + r, where r is the perturbation of length `radius`
    that changes the predictions most.

    Every pass uses batch statistics and the same dropout; the running statistics do not change.

    Args:
        setup: the run.
        step: the step, with network and key.
        inputs: inputs as the network sees them.
        mask: mask of real rows.
        radius: length of the perturbation, over all numbers of an input.
    """

    def predict(seen: Float[Array, "b ..."]) -> Float[Array, "b K"]:
        key = named_key(step.key, "dropout")
        return setup.model.apply(
            step.params, step.model_state, seen, train=True, key=key, mask=mask
        )[0].logits

    perturbation = vat_direction(
        predict, inputs, named_key(step.key, "direction"), radius, mask=mask
    )
    return predict(inputs), predict(inputs + perturbation)


def judge_unlabelled(
    setup: Setup,
    outcome: RoundResult,
    truth: Int[Array, "p n"],
    number: int,
    predict: Callable[[Outputs], Float[Array, "p u K"]],
    given: Callable[[Float[Array, "p u"]], Bool[Array, "p u"]],
) -> Metrics:
    """Score the pseudo-labels of the first unlabelled examples of every client, by the model that
    was sent.

    Args:
        setup: the run.
        outcome: the round.
        truth: true labels.
        number: number of examples of each client, u.
        predict: outputs of the network -> class probabilities.
        given: largest probabilities -> mask of examples with a pseudo-label.
    """
    round = outcome.context
    clients = outcome.context.clients
    size = clients.rows.shape[1]
    place = clients.num_labelled[:, None] + jnp.arange(min(number, size), dtype=jnp.int32)
    within = jnp.minimum(place, size - 1)
    rows = jnp.take_along_axis(clients.rows, within, axis=1)
    probabilities = predict(network_outputs(setup, round, clients._replace(rows=rows)))
    largest = jnp.max(probabilities, axis=2)
    sure = (place < clients.num_examples[:, None]) & given(largest) & jnp.isfinite(largest)
    labels = jnp.where(sure, jnp.argmax(probabilities, axis=2).astype(jnp.int32), -1)
    number_unlabelled = clients.num_examples - clients.num_labelled
    seen = clients._replace(
        rows=rows, observed=jnp.full_like(rows, -1), num_examples=number_unlabelled
    )
    truth = jnp.take_along_axis(truth, within, axis=1)
    return diagnose_pseudo_labels(PseudoLabels(labels, largest, largest), truth, seen)


class Teacher(NamedTuple):
    """A moving average of networks, such as the student's, and its number of steps."""

    params: PyTree
    model_state: PyTree
    step: Float[Array, ""]


def taught_term(
    name: str,
    views: tuple[View, ...],
    loss: Callable[[Step], tuple[Array, Teacher]],
    decay: float | Array,
) -> Term:
    """Return a term whose clients have a mean teacher, in `step.local`; the server averages
    teachers as it averages models.

    After step t, counted over all rounds as the mean over the clients, the teacher g becomes d g +
    (1 - d) f with d = min(1 - 1 / (t + 1), decay) and the student f. In the stage's first round the
    teacher is the student. Teacher and step count are sent both ways with the student.

    Args:
        name: name of the term.
        views: views that the loss reads.
        loss: step -> (scalar, teacher with its running statistics after the step).
        decay: largest decay.
    """

    def from_student(teacher: Teacher, context: RoundContext) -> tuple[Broadcast, Teacher]:
        fresh = Teacher(context.params, context.model_state, jnp.zeros(()))
        sent = jax.tree.map(
            lambda new, old: jnp.where(context.number == 0, new, old), fresh, teacher
        )
        return Broadcast(shared=sent), sent

    def followed(step: TakeStep, name: str) -> TakeStep:
        def take(at: LocalStep) -> StepTaken:
            taken = step(at)
            teacher = taken.local[name]
            student = at.network(taken)
            number = teacher.step + 1.0
            keep = teacher_decay(number, decay)
            averaged = jax.tree.map(
                lambda old, new: keep * old + (1.0 - keep) * new, teacher.params, student.params
            )
            teacher = Teacher(averaged, teacher.model_state, number)
            return taken._replace(local={**taken.local, name: teacher})

        return take

    server = AtServer(
        init=lambda key, params, model_state, clients: Teacher(params, model_state, jnp.zeros(())),
        prepare=from_student,
        server_update=lambda teacher, outcome: outcome.mean_or(teacher),
    )
    client = AtClient(
        start=lambda teacher, params, model_state, kept: teacher,
        wrap_step=followed,
        average=lambda trained: trained.local[name],
    )
    return Term(name, views, loss, server=server, client=client)


def teacher_network(term: str) -> Callable[[ServerState], tuple[PyTree, PyTree]]:
    """Return the moving average of this term from the state; before its first step, the network
    itself.
    """

    def network(state: ServerState) -> tuple[PyTree, PyTree]:
        teacher = state.terms[term]
        student = (merged(state.params), state.model_state)
        return jax.tree.map(
            lambda taught, own: jnp.where(teacher.step > 0, taught, own),
            (teacher.params, teacher.model_state),
            student,
        )

    return network
