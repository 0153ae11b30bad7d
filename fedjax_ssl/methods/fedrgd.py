"""FedRGD: less gradient diversity by consistency, group norm and grouped averaging.

The server has a few labelled examples, the users have unlabelled ones. A round, with B rows per batch, a the weak and A
the strong augmentation:

1. The users of the cohort fill slots at random. A slot starts from the model of its group, a replica of the server, one
   per group, from the global model.
2. Every user takes T steps on the consistency loss: with q = softmax f(a(u)), no gradient through it,

       1/B sum_u [max q >= tau] CE(argmax q, f(A(u))).

   Every replica takes T steps on the cross-entropy of B labelled examples, CE(f(a(x)), y).
3. The next model of a group is the mean of its slots and its replica, the next global model the mean of the groups.

Step 1 and step 3 are `config.federated.name = "grouped"` (`fedjax_ssl.federated.grouped`); with "fedavg" there is one
group, the authors' baseline. Group norm is `config.model.norm = "gn"`. With labels at clients there is no replica: B
labelled rows join every batch of a user, and two users are the bridge between two groups.

References:
    Zhang, Yang, Yao, Yan, Gonzalez, Mahoney, Improving semi-supervised federated learning by reducing the gradient
    diversity of models, IEEE Big Data 2021, arXiv 2008.11364; read from its public code. Later papers call it FedRGD.
"""

import warnings
from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import In, Whole, checked
from fedjax_ssl.federated import (
    AtServer,
    Client,
    Diversity,
    ForLog,
    GradientPass,
    Method,
    Now,
    RoundResult,
    Sampler,
    Schedule,
    ServerTraining,
    Setup,
    Stage,
    Step,
    Steps,
    Term,
    federated_method,
    fixed_steps,
    full_gradient_diversity,
    paired_batches,
    passes,
    with_gradient_diversity,
)
from fedjax_ssl.federated.method import Metrics, PyTree
from fedjax_ssl.federated.terms import (
    PseudoLabels,
    augmented_view,
    diagnose_pseudo_labels,
    network_outputs,
    supervised_term,
)
from fedjax_ssl.methods.parts.consistency import strong_view
from fedjax_ssl.methods.parts.step_schedules import NOMINAL_STEPS, with_step_schedule
from fedjax_ssl.objectives import fixmatch_loss


class Batches(NamedTuple):
    """Local steps of a round."""

    number: int  # T
    extra_every: int  # rounds, of which the first takes one step more; 0: none does


@checked
def fedrgd(
    setup: Setup,
    *,
    labels: Literal["server", "client"] = "server",
    user_loss: Literal["crl", "self_training", "supervised"] = "crl",
    consistency: Literal["cross_view", "self_view"] = "cross_view",
    threshold: Annotated[float | Array, In("[0, inf)")] = 0.95,
    local_steps: Annotated[int, Whole(1)] = 16,
    lr_schedule: str = "plain",
    warmup_steps: Annotated[int, Whole(0)] = 0,
    schedule_steps: Annotated[int | None, Whole(1)] = None,
    first_period_extra_step: bool = False,
    bn_stats: Literal["server", "average"] = "server",
    diversity: Literal["updates", "gradients", "both"] = "updates",
    diversity_every: Annotated[int, Whole(1)] = 1,
    norm_ord: Annotated[int, Whole(1, 2)] = 2,
    squared: bool = True,
    include_server: bool = True,
    exclude_norm: bool = False,
) -> Method:
    """FedRGD: consistency at the users, replicas of the server as members of the average, groups of users.

    Grouped averaging is `config.federated.name = "grouped"`, group norm `config.model.norm = "gn"`. With
    `config.optimizer.keep_state` and `keep_by = "slot"` momentum stays with the slots, as in the code.

    Args:
        setup: the run; users and server have batches of `batch_size`.
        labels: who has some: the "server", which then is a member of the average, or every "client".
        user_loss: "crl"; "self_training": pseudo-labels by the network in evaluation mode, learned on the same weak
            view; "supervised": class labels of the clients, in place of unlabelled examples.
        consistency: "cross_view"; "self_view": each view learns its own pseudo-labels, mean over both, as the code has
            it for labels at clients.
        threshold: tau, of the largest probability; above 1 no user learns.
        local_steps: T.
        lr_schedule: of the factor on the run's learning rate: "plain" (cosine), "reference_fast" (as in the code, not
            monotone), or "run" for none, see `fedjax_ssl.methods.parts.step_schedules`.
        warmup_steps: local steps of linear warm-up.
        schedule_steps: local steps of the cosine; None: of the run.
        first_period_extra_step: the first round of every 1,024 steps takes T + 1, as in the code.
        bn_stats: running statistics of batch norm layers are the "server"'s, or the "average" of all members.
        diversity: metric of the log: "updates" (of local training, "gradient_diversity"), "gradients" (of a further
            pass over the data at the averaged models, "full_gradient_diversity"), or "both".
        diversity_every: rounds, of which the last makes that pass.
        norm_ord: of these metrics, 2 or 1.
        squared: whether their norms are squared.
        include_server: whether replicas count in them.
        exclude_norm: parameters of norm layers do not count in "full_gradient_diversity".

    Raises:
        ValueError: for a setting outside these, a run of unknown length without `schedule_steps`, or gradients at an
            averaged model where clients train alone.
    """
    how = Diversity(norm_ord, squared, include_server)
    if isinstance(threshold, (int, float)) and threshold > 1 and user_loss != "supervised":
        warnings.warn(f"threshold is {threshold}: no pseudo-label is so sure, users learn nothing", stacklevel=2)
    setup = with_step_schedule(setup, lr_schedule, local_steps, warmup_steps, schedule_steps)
    if diversity != "gradients":
        setup = setup._replace(federated_optimizer=with_gradient_diversity(setup.federated_optimizer, how))
    batches = Batches(local_steps, max(NOMINAL_STEPS // local_steps, 1) if first_period_extra_step else 0)
    unlabelled = unlabelled_term(setup, user_loss, consistency, threshold)

    def gradient_pass(*streams: str) -> GradientPass | None:
        if diversity == "updates":
            return None
        server = one_pass(setup, ("labelled",), setup.max_server) if labels == "server" else None
        own = one_pass(setup, streams)
        return full_gradient_diversity(own, how, server=server, exclude_norm=exclude_norm, every=diversity_every)

    if labels == "client":
        terms = (supervised_term(setup), *(() if user_loss == "supervised" else (unlabelled,)))
        both = ("labelled", "unlabelled") if user_loss != "supervised" else ("labelled",)
        stage = Stage(terms, steps_of(setup, batches, both), gradient_pass=gradient_pass(*both))
        return federated_method(setup, (stage,))
    at_server = supervised_term(setup)._replace(name="supervised at server")
    server = ServerTraining(
        (at_server,),
        steps_of(setup, batches, ("labelled",), setup.max_server),
        members=setup.federated_optimizer.groups.replicas,
        keep_optimizer=setup.keep_optimizer,
        statistics=bn_stats == "server",
    )
    if user_loss == "supervised":
        stage = Stage((supervised_term(setup),), steps_of(setup, batches, ("labelled",)), labelled_quota="only")
        stage = stage._replace(server=server, gradient_pass=gradient_pass("labelled"))
        return federated_method(setup, (stage,), needs=("labels", "server"), needs_all=True)
    stage = Stage((unlabelled,), steps_of(setup, batches, ("unlabelled",)), labelled_quota="any", server=server)
    stage = stage._replace(gradient_pass=gradient_pass("unlabelled"))
    return federated_method(setup, (stage,), needs=("server",))


def unlabelled_term(setup: Setup, user_loss: str, consistency: str, threshold: float | Array) -> Term:
    """The users' loss on stream "unlabelled": consistency of a weak and a strong view, or self-training on a weak one.

    Args:
        setup: the run.
        user_loss: see `fedrgd`.
        consistency: see `fedrgd`.
        threshold: of the largest probability, >= 0.
    """
    weak, strong = augmented_view(setup, "unlabelled"), strong_view(setup)

    def crl(step: Step) -> Array:
        mask = step.streams["unlabelled"].mask
        views = step.outputs[weak.name].logits, step.outputs[strong.name].logits
        return consistency_loss(*views, mask, threshold, consistency == "self_view")

    def self_training(step: Step) -> Array:
        quiet, _ = setup.model.apply(step.params, step.model_state, step.inputs[weak.name], train=False)
        logits = step.outputs[weak.name].logits
        return fixmatch_loss(quiet.logits, logits, step.streams["unlabelled"].mask, threshold)

    views, loss = ((weak,), self_training) if user_loss == "self_training" else ((weak, strong), crl)
    participates = AtServer(participates=lambda sent, round: round.valid & (round.clients.num_examples > 0))
    log = ForLog(diagnose=partial(_diagnose, setup, threshold))
    return Term("unlabelled", views, loss, server=participates, log=log)


def consistency_loss(
    weak_logits: Float[Array, "n K"],
    strong_logits: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    threshold: float | Array,
    self_view: bool = False,
) -> Float[Array, ""]:
    """Consistency regularization loss (CRL), the mean over the whole batch.

    Args:
        weak_logits: of the weak views.
        strong_logits: of the strong views.
        mask: rows that belong to the batch.
        threshold: of the largest probability, inclusive.
        self_view: each view learns the pseudo-label of its own logits, in one batch of 2n.
    """
    if not self_view:
        return fixmatch_loss(weak_logits, strong_logits, mask, threshold)
    both = jnp.concatenate([weak_logits, strong_logits])
    return fixmatch_loss(both, both, jnp.concatenate([mask, mask]), threshold)


def steps_of(setup: Setup, batches: Batches, streams: tuple[str, ...], max_labelled: int | None = None) -> Sampler:
    """T steps of these streams of `paired_batches`; "unlabelled" alone goes through labelled examples too.

    Args:
        setup: the run.
        batches: T, and when there is a step more.
        streams: "labelled", "unlabelled" or both.
        max_labelled: static bound; None: of the clients.
    """
    drawn_from = _streams_of(setup, fixed_steps(batches.number + bool(batches.extra_every)), streams, max_labelled)

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        drawn = drawn_from.schedule(key, client, now)
        number = drawn.num_steps
        if batches.extra_every:
            number = jnp.minimum(number, batches.number + (now.number % batches.extra_every == 0).astype(jnp.int32))
        return drawn._replace(num_steps=number)

    return Sampler(schedule)


def one_pass(setup: Setup, streams: tuple[str, ...], max_labelled: int | None = None) -> Sampler:
    """As many batches as go once through the client's examples; the last one is filled up.

    Of both streams, the unlabelled one is passed over, and the other one is repeated.

    Args:
        setup: the run.
        streams: "labelled", "unlabelled" (then all examples) or both.
        max_labelled: static bound; None: of the clients.
    """
    size, most = setup.batch_size, setup.max_labelled if max_labelled is None else max_labelled
    steps = passes(size, size, 1, most, setup.max_unlabelled)
    if streams == ("unlabelled",):
        most += setup.max_unlabelled
        steps = Steps(lambda client: -(-client.num_examples // size), max(-(-most // size), 1))
    elif streams == ("labelled",):
        steps = Steps(lambda client: -(-client.num_labelled // size), max(-(-most // size), 1))
    return _streams_of(setup, steps, streams, max_labelled)


def _streams_of(setup: Setup, steps: Steps, streams: tuple[str, ...], max_labelled: int | None) -> Sampler:
    """These streams of `paired_batches`, in steps that have a row."""
    size, most = setup.batch_size, setup.max_labelled if max_labelled is None else max_labelled
    alone = streams == ("unlabelled",)
    drawn_from = paired_batches(size, size, steps, most, setup.max_unlabelled, labelled_too=alone)

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        drawn = drawn_from.schedule(key, client, now)
        number = drawn.num_steps
        if streams == ("labelled",):  # no step without a row
            number = jnp.where(client.num_labelled > 0, number, 0)
        return Schedule(
            {name: drawn.positions[name] for name in streams}, {name: drawn.masks[name] for name in streams}, number
        )

    return Sampler(schedule)


def _diagnose(
    setup: Setup, threshold: float | Array, outcome: RoundResult, truth: Int[Array, "p n"], measured: PyTree
) -> Metrics:
    """Pseudo-labels of a batch of every user's unlabelled examples, by the global model at the start of the round."""
    round, clients = outcome.round, outcome.round.clients
    size = clients.rows.shape[1]
    place = clients.num_labelled[:, None] + jnp.arange(min(setup.batch_size, size), dtype=jnp.int32)
    within = jnp.minimum(place, size - 1)
    rows = jnp.take_along_axis(clients.rows, within, axis=1)
    probabilities = jax.nn.softmax(network_outputs(setup, round, clients._replace(rows=rows)).logits)
    largest = jnp.max(probabilities, axis=2)
    sure = (place < clients.num_examples[:, None]) & (largest >= threshold) & jnp.isfinite(largest)
    labels = jnp.where(sure, jnp.argmax(probabilities, axis=2).astype(jnp.int32), -1)
    seen = clients._replace(
        rows=rows, observed=jnp.full_like(rows, -1), num_examples=clients.num_examples - clients.num_labelled
    )
    return diagnose_pseudo_labels(
        PseudoLabels(labels, largest, largest), jnp.take_along_axis(truth, within, axis=1), seen
    )
