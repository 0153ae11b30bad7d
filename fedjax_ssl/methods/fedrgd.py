"""FedRGD: less gradient diversity by consistency, group norm and grouped averaging.

The server has a few labelled examples, the users have unlabelled ones. A round, with B rows per
batch, a the weak and A the strong augmentation:

1. The users of the cohort fill slots at random. A slot starts from the model of its group, a
   replica of the server, one per group, from the global model.
2. Every user takes T steps on the consistency loss: with q = softmax f(a(u)), no gradient through
   it,

       1/B sum_u [max q >= tau] CE(argmax q, f(A(u))).

   Every replica takes T steps on the cross-entropy of B labelled examples, CE(f(a(x)), y).
3. The next model of a group is the mean of its slots and its replica, the next global model the
   mean of the groups.

Step 1 and step 3 are `config.federated.name = "grouped"` (`fedjax_ssl.federated.grouped`); with
"fedavg" there is one group, the authors' baseline. Group norm is `config.model.norm = "gn"`. With
labels at clients there is no replica: B labelled rows join every batch of a user, and two users are
the bridge between two groups.

References:
    Zhang, Yang, Yao, Yan, Gonzalez, Mahoney, Improving semi-supervised federated learning by
    reducing the gradient diversity of models, IEEE Big Data 2021, arXiv 2008.11364; read from its
    public code. Later papers call it FedRGD.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_ssl.checks import Whole, checked
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import (
    Needs,
    ParameterGroups,
    Recipe,
    RoundContext,
    RoundResult,
    Sampler,
    Schedule,
    ServerState,
    ServerTraining,
    Stage,
    Step,
    build,
)
from fedjax_ssl.federated.execution import Execution
from fedjax_ssl.federated.method import (
    AtServer,
    Client,
    ForLog,
    Kept,
    Metrics,
    Now,
    Params,
    Term,
    View,
)
from fedjax_ssl.federated.optimizers import (
    FederatedOptimizer,
    Grouped,
    Local,
    Moved,
    Report,
    fedavg,
)
from fedjax_ssl.federated.replicas import with_replicas
from fedjax_ssl.federated.sampler import Steps, fixed_steps, paired_batches, passes
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.methods.parts.consistency import LABELLED, UNLABELLED, judge_unlabelled, strong_view
from fedjax_ssl.methods.parts.recommended import AT_CLIENTS
from fedjax_ssl.methods.parts.settings import Count, CountOrZero, Weight
from fedjax_ssl.methods.parts.terms import augmented_view, supervised_term
from fedjax_ssl.objectives import fixmatch_loss

_FIELDS = {
    "strong_augment.name": "shift",
    "strong_augment.pixels": 1,
    "federated.name": "grouped",
    "optimizer.learning_rate": 0.03,
    "optimizer.schedule": "constant",  # the method has its own
    "optimizer.momentum": 0.9,
    "optimizer.nesterov": True,
    "optimizer.weight_decay": 1e-4,
    "optimizer.keep_state": True,
    "optimizer.keep_by": "slot",
    "optimizer.batch_size": 10,
}
RECOMMENDED = {
    "fedrgd": {
        "server": {"rounds": 20, "optimizer.local_epochs": 2, **_FIELDS},
        "per_client": {**AT_CLIENTS, **_FIELDS, "method.labels": "client"},
    }
}
BY_ITSELF = {"fedrgd": "its federated optimizer averages in groups of clients"}

# of an epoch in the code, whose runs are nominally 1024 epochs; "fast" ones end after 200
NOMINAL_STEPS = 1024


@checked
@dataclass(frozen=True)
class FedRGD:
    """Settings of FedRGD.

    Attributes:
        labels: who has some: the "server", which then is a member of the average, or every
            "client".
        user_loss: "crl"; "self_training": pseudo-labels by the network in evaluation mode, learned
            on the same weak view; "supervised": class labels of the clients, in place of unlabelled
            examples.
        consistency: "cross_view"; "self_view": each view learns its own pseudo-labels, mean over
            both, as the code has it for labels at clients.
        threshold: tau, of the largest probability; above 1 no user learns.
        local_steps: T.
        lr_schedule: of the factor on the run's learning rate: "plain" (cosine), "reference_fast"
            (as in the code, not monotone), or "run" for none, see `cosine_factor`.
        warmup_steps: local steps of linear warm-up.
        schedule_steps: local steps of the cosine; None: of the run.
        first_period_extra_step: the first round of every 1,024 steps takes T + 1, as in the code.
        replica_same_batches: the groups' replicas of the server see the same batches: one replica
            is a member of every group, as in the code.
        bn_stats: running statistics of batch norm layers are the "server"'s, or the "average" of
            all members.
        diversity: metric of the log: "updates" (of local training, "gradient_diversity"),
            "gradients" (of a further pass over the data at the averaged models,
            "full_gradient_diversity"), or "both".
        diversity_every: rounds, of which the last makes that pass.
        norm_ord: ord of these metrics, 2 or 1.
        squared: whether their norms are squared.
        include_server: whether replicas count in them.
        exclude_norm: parameters of norm layers do not count in "full_gradient_diversity".
    """

    labels: Literal["server", "client"] = "server"
    user_loss: Literal["crl", "self_training", "supervised"] = "crl"
    consistency: Literal["cross_view", "self_view"] = "cross_view"
    threshold: Weight = 0.95
    local_steps: Count = 16
    lr_schedule: Literal["run", "plain", "reference_fast"] = "plain"
    warmup_steps: CountOrZero = 0
    schedule_steps: Annotated[int | None, Whole(1)] = None
    first_period_extra_step: bool = False
    replica_same_batches: bool = False
    bn_stats: Literal["server", "average"] = "server"
    diversity: Literal["updates", "gradients", "both"] = "updates"
    diversity_every: Count = 1
    norm_ord: Annotated[int, Whole(1, 2)] = 2
    squared: bool = True
    include_server: bool = True
    exclude_norm: bool = False


def fedrgd(setup: Setup, settings: FedRGD) -> Recipe:
    """FedRGD: consistency at the users, replicas of the server as members of the average, groups of
    users.

    Grouped averaging is `config.federated.name = "grouped"`, group norm `config.model.norm = "gn"`.
    With `config.optimizer.keep_state` and `keep_by = "slot"` momentum stays with the slots, as in
    the code.

    Args:
        setup: the run; users and server have batches of `batch_size`.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these, a run of unknown length without `schedule_steps`,
            or gradients at an averaged model where clients train alone.
    """
    learns = settings.user_loss != "supervised"
    threshold = settings.threshold
    if learns and isinstance(threshold, (int, float)) and threshold > 1:
        warnings.warn(
            f"threshold is {threshold}: no pseudo-label is so sure, users learn nothing",
            stacklevel=2,
        )
    setup = with_step_schedule(setup, settings)
    unmeasured = setup
    if settings.diversity != "gradients":
        setup = setup._replace(
            federated_optimizer=with_gradient_diversity(setup.federated_optimizer, settings)
        )
    supervised = supervised_term(setup)
    terms = {LABELLED: supervised, UNLABELLED: unlabelled_term(setup, settings)}
    streams: tuple[str, ...] = (UNLABELLED,) if learns else (LABELLED,)
    if learns and settings.labels == "client":
        streams = (LABELLED, UNLABELLED)
    stage = Stage(tuple(terms[name] for name in streams), steps_of(setup, settings, streams))
    needs = Needs(("labels",))
    if settings.labels == "server":
        server = ServerTraining(
            (supervised._replace(name="supervised at server"),),
            steps_of(setup, settings, (LABELLED,), setup.max_server),
            keep_optimizer=setup.keep_optimizer,
        )
        stage = stage._replace(labelled_quota="any" if learns else "only", server=server)
        needs = Needs(("server",)) if learns else Needs(("labels", "server"), every_one=True)
    recipe = Recipe(setup, (stage,), needs=needs)
    if settings.diversity != "updates":
        at_server = one_pass(setup, (LABELLED,), setup.max_server)
        clients = one_pass(setup, streams)
        recipe = with_gradient_pass(recipe, unmeasured, clients, at_server, settings)
    groups = setup.federated_optimizer.groups
    replicas = 1 if settings.replica_same_batches else groups.number
    return with_replicas(recipe, replicas, settings.bn_stats == "server")


def unlabelled_term(setup: Setup, settings: FedRGD) -> Term:
    """Return the users' loss on stream "unlabelled": consistency of a weak and a strong view, or
    self-training on a weak one.
    """
    threshold = settings.threshold
    weak = augmented_view(setup, UNLABELLED)
    strong = strong_view(setup)

    def crl(step: Step) -> Array:
        mask = step.streams[UNLABELLED].mask
        views = step.outputs[weak.name].logits, step.outputs[strong.name].logits
        return consistency_loss(*views, mask, threshold, settings.consistency == "self_view")

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


def consistency_loss(
    weak_logits: Float[Array, "n K"],
    strong_logits: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    threshold: float | Array,
    self_view: bool = False,
) -> Float[Array, ""]:
    """Consistency regularization loss (CRL), the mean over the whole batch.

    Args:
        weak_logits: logits of the weak views.
        strong_logits: logits of the strong views.
        mask: rows that belong to the batch.
        threshold: threshold of the largest probability, inclusive.
        self_view: each view learns the pseudo-label of its own logits, in one batch of 2n.
    """
    if not self_view:
        return fixmatch_loss(weak_logits, strong_logits, mask, threshold)
    both = jnp.concatenate([weak_logits, strong_logits])
    return fixmatch_loss(both, both, jnp.concatenate([mask, mask]), threshold)


def steps_of(
    setup: Setup, settings: FedRGD, streams: tuple[str, ...], max_labelled: int | None = None
) -> Sampler:
    """T steps of these streams of `paired_batches`; "unlabelled" alone goes through labelled
    examples too.

    Args:
        setup: the run.
        settings: the method's own.
        streams: "labelled", "unlabelled" or both.
        max_labelled: static bound; None: of the clients.
    """
    number = settings.local_steps
    if not settings.first_period_extra_step:
        return _streams_of(setup, fixed_steps(number), streams, max_labelled)
    every = max(NOMINAL_STEPS // number, 1)

    def bound(now: Now) -> Int[Array, ""]:
        return number + (now.number % every == 0).astype(jnp.int32)

    return _streams_of(setup, fixed_steps(number + 1), streams, max_labelled, bound)


def one_pass(setup: Setup, streams: tuple[str, ...], max_labelled: int | None = None) -> Sampler:
    """As many batches as go once through the client's examples; the last one is filled up.

    Of both streams, the unlabelled one is passed over, and the other one is repeated.

    Args:
        setup: the run.
        streams: "labelled", "unlabelled" (then all examples) or both.
        max_labelled: static bound; None: of the clients.
    """
    size = setup.batch_size
    most = setup.max_labelled if max_labelled is None else max_labelled
    steps = passes(size, size, 1, most, setup.max_unlabelled)
    if streams == (UNLABELLED,):
        most += setup.max_unlabelled
        steps = Steps(lambda client: -(-client.num_examples // size), max(-(-most // size), 1))
    elif streams == (LABELLED,):
        steps = Steps(lambda client: -(-client.num_labelled // size), max(-(-most // size), 1))
    return _streams_of(setup, steps, streams, max_labelled)


def _streams_of(
    setup: Setup,
    steps: Steps,
    streams: tuple[str, ...],
    max_labelled: int | None,
    bound: Callable[[Now], Int[Array, ""]] | None = None,
) -> Sampler:
    """Return these streams of `paired_batches`, in steps that have a row and not in more than the
    bound.
    """
    size = setup.batch_size
    most = setup.max_labelled if max_labelled is None else max_labelled
    alone = streams == (UNLABELLED,)
    drawn_from = paired_batches(size, size, steps, most, setup.max_unlabelled, labelled_too=alone)

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        drawn = drawn_from.schedule(key, client, now)
        number = drawn.num_steps if bound is None else jnp.minimum(drawn.num_steps, bound(now))
        if streams == (LABELLED,):
            number = jnp.where(client.num_labelled > 0, number, 0)
        positions, masks = (
            {name: table[name] for name in streams} for table in (drawn.positions, drawn.masks)
        )
        return Schedule(positions, masks, number)

    return Sampler(schedule)


def cosine_factor(
    step: Float[Array, ""], warmup_steps: int, total_steps: int, fast: bool = False
) -> Float[Array, ""]:
    """Return the factor at a local step.

    step / w during the first w steps. Then, with x = (step - w) / (total - w), max(1e-6, cos(7 pi x
    / 16)); fast: max(1e-5, cos(pi n x)) with n = 7/16 (1024^2 - w) / (1024 * 200 - w), which goes
    through more than one period unless `total_steps` is 1024^2.

    Args:
        step: local steps before this one.
        warmup_steps: w.
        total_steps: steps of the run.
        fast: see above.
    """
    periods = 7 / 16
    floor = 1e-6
    if fast:
        floor = 1e-5
        periods *= (NOMINAL_STEPS**2 - warmup_steps) / (NOMINAL_STEPS * 200 - warmup_steps)
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    decayed = jnp.maximum(jnp.cos(jnp.pi * periods * progress), floor)
    return jnp.where(step < warmup_steps, step / max(warmup_steps, 1), decayed)


def with_step_schedule(setup: Setup, settings: FedRGD) -> Setup:
    """Return the run with its learning rate times the factor at the first local step of each round.

    In a round that begins during warm-up it is the factor at the round's last step, or at the end
    of warm-up if that comes first: at the first step of round 0 the factor is 0.

    Raises:
        ValueError: a run of unknown length without `schedule_steps`.
    """
    if settings.lr_schedule == "run":
        return setup
    total_steps = settings.schedule_steps
    if total_steps is None:
        if setup.rounds is None:
            raise ValueError(
                f"lr_schedule is {settings.lr_schedule!r} and the run's length is not known; give "
                "schedule_steps"
            )
        total_steps = max(setup.rounds * settings.local_steps, 1)
    fast = settings.lr_schedule == "reference_fast"
    warmup_steps = settings.warmup_steps
    local_steps = settings.local_steps

    def learning_rate(number: Array) -> Float[Array, ""]:
        rate = setup.learning_rate(number)
        first = number.astype(rate.dtype) * local_steps
        first = jnp.where(
            first < warmup_steps, jnp.minimum(first + local_steps - 1, warmup_steps), first
        )
        return rate * cosine_factor(first, warmup_steps, total_steps, fast)

    return setup._replace(learning_rate=learning_rate)


def with_gradient_diversity(optimizer: FederatedOptimizer, how: FedRGD) -> FederatedOptimizer:
    """Add the metric "gradient_diversity" to a federated optimizer, at the cost of a sum of changes
    per group.

    Its vectors are the changes of the members in local training, from where each started. Every
    group has a mean of its own (`fedjax_ssl.federated.Groups`), and the diversity is averaged over
    all members of all groups that trained.
    """
    counting = _counting(optimizer, how)

    def report(local: Local) -> Report:
        inner = optimizer.report(
            local._replace(sent_by_optimizer=local.sent_by_optimizer["optimizer"])
        )
        trained = jnp.any(jnp.stack(list(local.weights.values())) > 0)
        mine = jnp.where(trained, counting.groups.membership(local.sent_by_optimizer), 0.0)
        measured = (inner.summed.measured, share_of(local.change, mine, how))
        return Report(inner.summed._replace(measured=measured), inner.kept)

    def log(summed: Moved, context: RoundContext) -> dict[str, Array]:
        others, shares = summed.measured
        return {
            **optimizer.log(summed._replace(measured=others), context),
            "gradient_diversity": diversity_of(shares, how),
        }

    return counting._replace(report=report, log=log)


def _counting(optimizer: FederatedOptimizer, how: FedRGD) -> FederatedOptimizer:
    """Tell who counts in the measure, beside what a federated optimizer sends; others are members
    of no group.
    """
    groups = optimizer.groups

    def membership(received: PyTree) -> Float[Array, " G"]:
        return jnp.where(received["counts"], groups.membership(received["optimizer"]), 0.0)

    def send(state: PyTree, kept: PyTree, context: RoundContext) -> PyTree:
        assert context.slots is not None
        is_client = context.slots < context.valid.shape[0]
        return {
            "optimizer": optimizer.send(state, kept, context),
            "counts": is_client | how.include_server,
        }

    def start(state: PyTree, received: PyTree, common: Grouped) -> Grouped:
        return optimizer.start(state, received["optimizer"], common)

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, received: PyTree) -> Grouped:
        return optimizer.correct(gradient, params, anchor, received["optimizer"])

    own_groups = groups._replace(membership=membership)
    return optimizer._replace(send=send, start=start, correct=correct, groups=own_groups)


def with_gradient_pass(
    recipe: Recipe,
    setup: Setup,
    clients: Sampler,
    server: Sampler,
    how: FedRGD,
) -> Recipe:
    """Add the metric "full_gradient_diversity" to a method of one stage; training does not change.

    Its vectors are the sums of the members' gradients over a pass over their examples, at the model
    of the round's end, or at that of their group. The pass is a round of its own, of the same
    cohort, whose result is thrown away: the losses move zeros that are added to the weights, by
    plain gradient steps, and the weights are read without them. It costs as much as a local epoch,
    and a sum of gradients per group.

    Args:
        recipe: of one stage, with the parameter group "model" alone.
        setup: the run.
        clients: batches of the pass.
        server: the server's, where it is a member of the average.
        how: norms, who counts, and of how many rounds the last one has the metric; in the others it
            is NaN.

    Raises:
        ValueError: clients train alone.
    """
    if setup.federated_optimizer.alone:
        raise ValueError(
            "gradients at the averaged model are those of clients that share a model; these "
            "clients train alone"
        )
    groups = setup.federated_optimizer.groups
    (stage,) = recipe.stages
    own_server = None
    if stage.server is not None:
        own_server = ServerTraining(_moving_sums(stage.server.terms), server)

    def network_of(params: Params) -> PyTree:
        leaves, structure = jax.tree.flatten(params["model"])
        sums = iter(params["sum"])
        counted = _counted(params["model"], how.exclude_norm)
        moved = []
        for weights, counts in zip(leaves, counted, strict=True):
            if counts:
                one = next(sums)
                # zero, with the gradient of the weights
                weights = weights + (one - jax.lax.stop_gradient(one))
            moved.append(weights)
        return jax.tree.unflatten(structure, moved)

    plain_steps = setup._replace(
        federated_optimizer=_measuring(setup.federated_optimizer, how),
        local_optimizer=optax.identity(),
        learning_rate=lambda number: jnp.ones(()),
        keep_optimizer=False,
        average_optimizer=False,
    )
    whole_pass = stage._replace(
        terms=_moving_sums(stage.terms),
        sampler=clients,
        server=own_server,
        weigh=lambda *_: jnp.ones(()),
    )
    groups_moved = ParameterGroups(("model", "sum"), combine=network_of)
    passing = Recipe(plain_steps, (whole_pass,), groups_moved)
    look_at = build(with_replicas(passing, groups.number)).round

    def measured_round(
        plain: Callable,
        key: Array,
        state: ServerState,
        data: FederatedData,
        execution: Execution | None = None,
    ) -> tuple[ServerState, Metrics]:
        after, info = plain(key, state, data, execution)

        def measured() -> Float[Array, ""]:
            model = after.params["model"]
            pairs = zip(jax.tree.leaves(model), _counted(model, how.exclude_norm), strict=True)
            sums = [jnp.zeros_like(values) for values, mine in pairs if mine]
            begin = after._replace(round=state.round, params={"model": model, "sum": sums})
            begin = begin._replace(clients=Kept({}, {}, {}, ()), server={}, local_optimizer={})
            # Of sizes the pass is told nothing: `Method.samplers`, which say what a program has of
            # them, are those that train.
            silent = (execution or Execution())._replace(report=None, all_clients=None)
            return look_at(key, begin, data, silent)[1]["full_gradient_diversity"]

        if how.diversity_every == 1:
            return after, {**info, "full_gradient_diversity": measured()}
        dtype = jax.eval_shape(measured).dtype
        due = (state.round + 1) % how.diversity_every == 0
        value = jax.lax.cond(due, measured, lambda: jnp.full((), jnp.nan, dtype))
        return after, {**info, "full_gradient_diversity": value}

    return recipe._replace(around_round=lambda plain: partial(measured_round, plain))


def _moving_sums(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    return tuple(term._replace(group="sum", log=ForLog()) for term in terms)


def _measuring(optimizer: FederatedOptimizer, how: FedRGD) -> FederatedOptimizer:
    """Start everybody from the model of its group, and report its share of the diversity in
    place of its change.
    """
    # Of one group only who counts has to be known.
    counting = _counting(optimizer if optimizer.groups.number > 1 else fedavg(), how)
    groups = counting.groups

    def start(state: PyTree, received: PyTree, common: Grouped) -> Grouped:
        models = groups.models(state, common)["model"]
        group = jnp.argmax(groups.membership(received))
        return {**common, "model": jax.tree.map(lambda x: x[group], models)}

    def report(local: Local) -> Report:
        mine = jnp.where(local.weights["sum"] > 0, groups.membership(local.sent_by_optimizer), 0.0)
        shares = share_of(local.change["sum"], mine, how)
        return Report(Moved(local.weights, {}, measured=shares))

    return FederatedOptimizer(
        init=lambda params: (),
        apply=lambda state, anchor, summed, context: (anchor, state),
        send=counting.send,
        start=start,
        report=report,
        log=lambda summed, context: {"full_gradient_diversity": diversity_of(summed.measured, how)},
        groups=groups,
    )


def _counted(params: PyTree, exclude_norm: bool) -> list[bool]:
    """Return which parameters count: all, or all but those of modules that have "norm" in their
    name.
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return [
        not (exclude_norm and "norm" in jax.tree_util.keystr(path[-2:-1]).lower()) for path in paths
    ]


class Shares(NamedTuple):
    """What members of groups add to the measure of diversity, leading axis G."""

    size: Float[Array, " G"]  # members
    norm: Float[Array, " G"]  # of their vectors
    change: list[Float[Array, "G ..."]]  # their vectors


def share_of(vector: PyTree, member: Float[Array, " G"], how: FedRGD) -> Shares:
    """Compute what a member adds to the sums of its group: 1, the norm of its vector, and the
    vector.

    Args:
        vector: the member's change or gradient, a tree of arrays.
        member: 1 for the groups that the member is in, else 0.
        how: the norm.
    """
    leaves = jax.tree.leaves(vector)
    norm = _norm(jnp.concatenate([jnp.ravel(x) for x in leaves]), how)
    change = [member.reshape(-1, *[1] * x.ndim).astype(x.dtype) * x for x in leaves]
    return Shares(member, member * norm, change)


def diversity_of(summed: Shares, how: FedRGD) -> Float[Array, ""]:
    """Compute the diversity of every member within its group, mean over all members: ||v_i||^2 /
    ||mean v||^2.

    Args:
        summed: shares (`share_of`), summed over the members.
        how: the norm.

    Returns:
        inf where the mean of a group with members is 0; NaN without any member. For the squared L2
        norm it is at least 1, and 1 only where all members of a group are equal.
    """
    size = summed.size
    sums = jnp.concatenate([x.reshape(size.shape[0], -1) for x in summed.change], axis=1)
    means = sums / jnp.maximum(size, 1.0)[:, None]
    norms = jax.vmap(lambda mean: _norm(mean, how))(means)
    nothing = size == 0
    standstill = norms == 0
    ratios = summed.norm / jnp.where(standstill, jnp.ones_like(norms), norms)
    ratios = jnp.where(standstill, jnp.inf, ratios)
    total = jnp.sum(size)
    mean = jnp.sum(jnp.where(nothing, 0.0, ratios)) / jnp.maximum(total, 1.0)
    return jnp.where(total > 0, mean, jnp.nan)


def _norm(vector: Float[Array, " d"], how: FedRGD) -> Float[Array, ""]:
    """Compute the L1 or L2 norm, or its square."""
    if how.norm_ord == 1:
        norm = jnp.sum(jnp.abs(vector))
        return norm**2 if how.squared else norm
    total = jnp.sum(jnp.square(vector))
    return total if how.squared else jnp.sqrt(total)
