"""FedRGD: less gradient diversity by consistency, group norm and grouped averaging.

The server has a few labelled examples, the users have unlabelled ones. A round, with B rows per
batch, a the weak and A the strong augmentation:

1. The users of the cohort fill slots at random. A slot starts from the model of its group. The
   server has one replica per group, which starts from the global model.
2. Every user takes T steps on the consistency loss: with q = softmax f(a(u)), no gradient through
   it,

       1/B sum_u [max q >= tau] CE(argmax q, f(A(u))).

   Every replica takes T steps on the cross-entropy of B labelled examples, CE(f(a(x)), y).
3. The next model of a group is the mean of its slots and its replica, the next global model the
   mean of the groups.

Step 1 and step 3 are `config.federated.name = "grouped"` (`fedjax_ssl.federated.grouped`); with
"fedavg" there is one group, which is the authors' baseline. Group norm is `config.model.norm =
"gn"`. With labels at clients there is no replica: B labelled rows join every batch of a user, and
two users are the bridge between two groups.

References:
    Zhang, Yang, Yao, Yan, Gonzalez, Mahoney, Improving semi-supervised federated learning by
    reducing the gradient diversity of models, IEEE Big Data 2021, arXiv 2008.11364; read from its
    public code. Later papers call it FedRGD.
"""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import (
    Needs,
    Recipe,
    RoundResult,
    Sampler,
    Schedule,
    Stage,
    Step,
    Training,
)
from fedjax_ssl.federated.contract import (
    AtClient,
    AtServer,
    Broadcast,
    Client,
    ForLog,
    LocalStep,
    Metrics,
    Now,
    RoundContext,
    StepTaken,
    TakeStep,
    Term,
    Traffic,
    View,
    never,
)
from fedjax_ssl.federated.local_optimizer import over_layers
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.federated.sampler import fixed_steps, paired_batches
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.federated.traffic import count
from fedjax_ssl.methods.parts.recommended import AT_CLIENTS
from fedjax_ssl.methods.parts.setting_types import Count, CountOrZero, Weight
from fedjax_ssl.methods.parts.terms import LABELLED, UNLABELLED, augmented_view, supervised_term
from fedjax_ssl.methods.parts.views_and_teachers import judge_unlabelled, strong_view
from fedjax_ssl.objectives import fixmatch_loss

GROUP = "model"
MOMENTUM = "momentum by slot"
_FIELDS = {
    "strong_augment.name": "shift",
    "strong_augment.pixels": 1,
    "federated.name": "grouped",
    "optimizer.learning_rate": 0.03,
    "optimizer.schedule": "constant",  # the method has its own schedule
    "optimizer.momentum": 0.9,
    "optimizer.nesterov": True,
    "optimizer.weight_decay": 1e-4,
    "optimizer.keep_state": True,
    "optimizer.batch_size": 10,
}
RECOMMENDED = {
    "fedrgd": {
        "server": {"rounds": 20, "optimizer.local_epochs": 2, **_FIELDS},
        "per_client": {**AT_CLIENTS, **_FIELDS, "method.labels": "client"},
    }
}


@checked
@dataclass(frozen=True)
class FedRGD:
    """Settings of FedRGD.

    Attributes:
        labels: place of the labels: the "server", which then is a member of the average, or every
            "client".
        user_loss: "crl"; "self_training": pseudo-labels by the network in evaluation mode, learned
            on the same weak view; "supervised": class labels of the clients, in place of unlabelled
            examples.
        threshold: tau, of the largest probability; above 1 no user learns.
        local_steps: T.
        lr_schedule: schedule of a factor on the run's learning rate: "plain" (`cosine_factor`), or
            "run" for none.
        warmup_steps: local steps of linear warm-up.
    """

    labels: Literal["server", "client"] = "server"
    user_loss: Literal["crl", "self_training", "supervised"] = "crl"
    threshold: Weight = 0.95
    local_steps: Count = 16
    lr_schedule: Literal["run", "plain"] = "plain"
    warmup_steps: CountOrZero = 0


def fedrgd(setup: Setup, settings: FedRGD) -> Recipe:
    """FedRGD: consistency at the users, replicas of the server as members of the average, groups of
    users.

    Grouped averaging is `config.federated.name = "grouped"`, group norm `config.model.norm = "gn"`.
    With `config.optimizer.keep_state` momentum stays with the slots, as in the code.

    Args:
        setup: the run; users and server have batches of `batch_size`.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these, or a schedule of a run of unknown length.
    """
    learns = settings.user_loss != "supervised"
    threshold = settings.threshold
    if learns and isinstance(threshold, (int, float)) and threshold > 1:
        warnings.warn(
            f"threshold is {threshold}: no pseudo-label is so sure, users learn nothing",
            stacklevel=2,
        )
    setup = with_step_schedule(setup, settings)
    supervised = supervised_term(setup)
    terms = {LABELLED: supervised, UNLABELLED: unlabelled_term(setup, settings)}
    streams: tuple[str, ...] = (UNLABELLED,) if learns else (LABELLED,)
    if learns and settings.labels == "client":
        streams = (LABELLED, UNLABELLED)
    stage = Stage(
        Training(tuple(terms[name] for name in streams), steps_of(setup, settings, streams))
    )
    needs = Needs(("labels",))
    if settings.labels == "server":
        stage = stage._replace(
            server=Training(
                (supervised._replace(name="supervised at server"),),
                steps_of(setup, settings, (LABELLED,), setup.max_server),
            ),
            when=("beside",),
            replicas=setup.federated_optimizer.num_groups,
            statistics_of="replicas",
            keep_server_optimizer=setup.keep_optimizer,
            labelled_quota="any" if learns else "only",
        )
        needs = Needs(("server",)) if learns else Needs(("labels", "server"), every_one=True)
    if setup.keep_optimizer:
        stage = stage.with_terms(momentum_by_slot(setup))
    return Recipe(setup._replace(keep_optimizer=False), (stage,), needs=needs)


def momentum_by_slot(setup: Setup) -> Term:
    """Return a term without a loss that keeps the users' optimizer states by slot of the cohort,
    not by user.
    """

    def init(key: Array, params: PyTree, *_: Any) -> PyTree:
        optimizer = over_layers(setup.local_optimizer, lambda: {GROUP: params})
        state = optimizer.init({GROUP: packing(params).pack(params)})
        return jax.tree.map(lambda x: jnp.stack([x] * setup.cohort_size), state)

    def prepare(state: PyTree, context: RoundContext) -> tuple[Broadcast, PyTree]:
        slots = context.slots
        assert slots is not None
        return Broadcast(jax.tree.map(lambda x: x[slots], state)), state

    def wrap_step(step: TakeStep, name: str) -> TakeStep:
        def take(at: LocalStep) -> StepTaken:
            first = partial(jnp.where, at.inputs.number == 0)
            own = jax.tree.map(first, at.inputs.client.sent[name], at.optimizer)
            taken = step(at._replace(optimizer=own))
            return taken._replace(local={**taken.local, name: taken.optimizer})

        return take

    def server_update(state: PyTree, outcome: RoundResult) -> PyTree:
        slots = outcome.context.slots
        assert slots is not None

        def put(old: Array, new: Array) -> Array:
            return old.at[jnp.where(outcome.counts, slots, old.shape[0])].set(new, mode="drop")

        return jax.tree.map(put, state, outcome.uploads)

    return Term(
        MOMENTUM,
        (),
        lambda step: jnp.zeros(()),
        server=AtServer(init, prepare, never, server_update),
        client=AtClient(
            start=lambda state, *_: jax.tree.map(lambda x: x[0], state),
            wrap_step=wrap_step,
            collect=lambda trained: trained.local[MOMENTUM],
        ),
        log=ForLog(traffic=lambda outcome: Traffic(count(0), count(0))),
    )


def unlabelled_term(setup: Setup, settings: FedRGD) -> Term:
    """Return the users' loss on stream "unlabelled": consistency of a weak and a strong view, or
    self-training on a weak view.
    """
    threshold = settings.threshold
    weak = augmented_view(setup, UNLABELLED)
    strong = strong_view(setup)

    def crl(step: Step) -> Array:
        mask = step.streams[UNLABELLED].mask
        weak_logits = step.outputs[weak.name].logits
        return fixmatch_loss(weak_logits, step.outputs[strong.name].logits, mask, threshold)

    def self_training(step: Step) -> Array:
        quiet, _ = setup.model.apply(
            step.params, step.model_state, step.inputs[weak.name], train=False
        )
        logits = step.outputs[weak.name].logits
        return fixmatch_loss(quiet.logits, logits, step.streams[UNLABELLED].mask, threshold)

    views: tuple[View, ...] = (weak, strong)
    loss = crl
    if settings.user_loss == "self_training":
        views = (weak,)
        loss = self_training
    participates = AtServer(
        participates=lambda sent, context: context.valid & (context.clients.num_examples > 0)
    )

    def diagnose(outcome: RoundResult, truth: Int[Array, "p n"], measured: PyTree) -> Metrics:
        def predict(outputs):
            return jax.nn.softmax(outputs.logits)

        return judge_unlabelled(
            setup, outcome, truth, setup.batch_size, predict, lambda largest: largest >= threshold
        )

    return Term(UNLABELLED, views, loss, server=participates, log=ForLog(diagnose=diagnose))


def steps_of(
    setup: Setup, settings: FedRGD, streams: tuple[str, ...], max_labelled: int | None = None
) -> Sampler:
    """Return a sampler of T steps with these streams of `paired_batches`, for clients with a row;
    with "unlabelled" alone, it uses labelled examples too.

    Args:
        setup: the run.
        settings: the method's own.
        streams: "labelled", "unlabelled" or both.
        max_labelled: static bound; None: the clients' bound.
    """
    size = setup.batch_size
    steps = fixed_steps(settings.local_steps)
    most = setup.max_labelled if max_labelled is None else max_labelled
    alone = streams == (UNLABELLED,)
    drawn_from = paired_batches(size, size, steps, most, setup.max_unlabelled, labelled_too=alone)

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        drawn = drawn_from.schedule(key, client, now)
        number = drawn.num_steps
        if streams == (LABELLED,):
            number = jnp.where(client.num_labelled > 0, number, 0)
        positions, masks = (
            {name: table[name] for name in streams} for table in (drawn.positions, drawn.masks)
        )
        return Schedule(positions, masks, number)

    return Sampler(schedule)


def cosine_factor(step: Float[Array, ""], warmup_steps: int, total_steps: int) -> Float[Array, ""]:
    """Return the factor at a local step.

    step / w during the first w steps. Then, with x = (step - w) / (total - w), max(1e-6, cos(7 pi x
    / 16)).

    Args:
        step: local steps before this one.
        warmup_steps: w.
        total_steps: steps of the run.
    """
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    decayed = jnp.maximum(jnp.cos(jnp.pi * (7 / 16) * progress), 1e-6)
    return jnp.where(step < warmup_steps, step / max(warmup_steps, 1), decayed)


def with_step_schedule(setup: Setup, settings: FedRGD) -> Setup:
    """Return the run with its learning rate times the factor at the first local step of each round.

    If the round begins during warm-up, it is the factor at the round's last step, or at the end of
    warm-up if that comes first, because the factor is 0 at the very first step.

    Raises:
        ValueError: a schedule of a run of unknown length.
    """
    if settings.lr_schedule == "run":
        return setup
    if setup.rounds is None:
        raise ValueError(
            f"lr_schedule is {settings.lr_schedule!r} and the run's length is not known; give the "
            "setup its rounds, or lr_schedule='run'"
        )
    total_steps = max(setup.rounds * settings.local_steps, 1)
    warmup_steps = settings.warmup_steps
    local_steps = settings.local_steps

    def learning_rate(number: Array) -> Float[Array, ""]:
        rate = setup.learning_rate(number)
        first = number.astype(rate.dtype) * local_steps
        first = jnp.where(
            first < warmup_steps, jnp.minimum(first + local_steps - 1, warmup_steps), first
        )
        return rate * cosine_factor(first, warmup_steps, total_steps)

    return setup._replace(learning_rate=learning_rate)
