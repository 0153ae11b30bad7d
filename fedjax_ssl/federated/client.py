"""Local training: one client, one round.

One local step builds the views that the terms ask for, runs one forward pass over all of them,
hands every term its slice, adds the weighted losses, takes one gradient and one optimizer update.
With several parameter groups the step has one such phase per group, in order; a loss moves only its
own group, because only that group is differentiated.

Parameters are carried in few arrays per group, see `fedjax_ssl.federated.packing`.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated.contract import (
    Client,
    ClientResult,
    Grouped,
    Kept,
    LocalStep,
    Losses,
    Packed,
    Packing,
    Params,
    Snapshot,
    Step,
    StepTaken,
    TakeStep,
    Term,
    Training,
)
from fedjax_ssl.federated.forward import forward_views, gather_streams, labelling_key, views_of
from fedjax_ssl.federated.local_optimizer import descend
from fedjax_ssl.federated.messages import (
    Arrivals,
    Download,
    Total,
    Upload,
    Work,
)
from fedjax_ssl.federated.optimizers import Local
from fedjax_ssl.federated.packing import apart, cut, packing
from fedjax_ssl.federated.plan import Batch, ClientProgress, Plan, batch_of, step_bound
from fedjax_ssl.federated.recipe import ParameterGroups, Recipe
from fedjax_ssl.federated.setup import WEIGHTINGS, Setup
from fedjax_ssl.federated.uploads.transform import (
    UploadTransform,
    chain,
    compare_forms,
    form_of,
    is_finite,
)
from fedjax_ssl.keys import named_key
from fedjax_ssl.own_code import where

PyTree = Any
# Scopes in which parts of a round are traced: profiles and compiled programs show these names.
LOCAL_STEP = "local_step"
AVERAGE = "average_clients"


class LocalRound(NamedTuple):
    """Parts of local training that are the same for all clients of a round."""

    setup: Setup
    groups: ParameterGroups
    training: Training
    download: Download
    uploads: UploadTransform
    packings: dict[str, Packing]  # by parameter group
    common: Grouped  # global parameters
    statistics: Array  # global batch statistics, in one vector
    unravel: Callable[[Array], PyTree]  # such a vector -> their tree

    @property
    def phases(self) -> dict[str, tuple[Term, ...]]:
        """Terms by the parameter group that they move, in the order of a local step's phases."""
        terms = self.training.terms
        phases = {
            group: tuple(term for term in terms if term.group == group)
            for group in self.groups.names
        }
        return {group: own for group, own in phases.items() if own}

    def unpack(self, grouped: Grouped) -> Params:
        """Return the few arrays of every parameter group as its tree."""
        # In the order of `groups.names`, because sums over groups follow it (FedMatch's).
        own = {group: self.packings[group].unpack(grouped[group]) for group in self.groups.names}
        return own | {
            group: tree for group, tree in self.download.params.items() if group not in own
        }

    def key_of(self, client: Client) -> Key[Array, ""]:
        """Return the client's key of this round, by its id."""
        return jax.random.fold_in(named_key(self.download.key, "client"), client.id)

    def rate_of(self, client: Client) -> Float[Array, ""]:
        """Return the learning rate of the client's local steps."""
        rate = self.download.learning_rate
        factor = self.training.rate
        return rate if factor is None else rate * factor(client)

    def anchor_of(self, client: Client) -> Grouped:
        """Return the parameters that a client starts from: the global ones, and its own private
        ones.
        """
        shared = {group: self.common[group] for group in self.groups.shared}
        sent = self.setup.federated_optimizer.start(
            self.download.optimizer, client.sent_by_optimizer, shared
        )
        own = {} if client.kept is None else client.kept.params
        found = {**self.common, **own, **sent}
        return {group: found[group] for group in self.groups.names}

    def statistics_of(self, client: Client) -> Array:
        """Return the batch statistics that a client starts from, in one vector."""
        if client.kept is None or not self.groups.own_statistics:
            return self.statistics
        return client.kept.model_state

    def network_of(self, client: Client) -> Snapshot:
        """Return the network that a client starts from."""
        groups = self.unpack(self.anchor_of(client))
        statistics = self.unravel(self.statistics_of(client))
        return Snapshot(self.groups.combine(groups), statistics, groups)


def local_round(recipe: Recipe, training: Training, download: Download) -> LocalRound:
    """Prepare a round's local training for all clients.

    Args:
        recipe: the method in its run.
        training: terms, batches, rate and weight of the clients.
        download: message to all clients.
    """
    groups = recipe.groups
    packings = {group: packing(download.params[group]) for group in groups.names}
    statistics, unravel = ravel_pytree(download.model_state)
    return LocalRound(
        setup=recipe.setup,
        groups=groups,
        training=training,
        download=download,
        uploads=chain(*recipe.setup.uploads),
        packings=packings,
        common={group: one.pack(download.params[group]) for group, one in packings.items()},
        statistics=statistics,
        unravel=partial(cut, unravel),
    )


def train_client(
    local: LocalRound, client: Client, plan: Plan, loop: str = "own"
) -> tuple[Total, Arrivals]:
    """Train one client for a round.

    Args:
        local: parts of local training that are the same for all clients.
        client: the client that trains.
        plan: its plan.
        loop: end of the loop over local steps. "own": the client's own number of steps. "bound":
            the static bound of its schedule, where steps beyond its own number change nothing; on a
            GPU, a loop with a constant end does not wait for the host. "whole": the same for
            clients that take either all these steps or none, so that single steps need no check,
            and XLA fuses the update of the weights with the product that gives their gradient.

    Returns:
        (values to add up over the cohort, values to stack).
    """
    begin = start_client(local, client)
    # A traced number of steps is exact: nothing differentiates through the loop.
    length = plan.num_steps if loop == "own" else step_bound(plan)

    @jax.named_scope(LOCAL_STEP)
    def take_step(number: Int[Array, ""], progress: ClientProgress) -> ClientProgress:
        after = take_local_step(local, client, number, batch_of(plan, number), progress)
        if loop == "bound":
            after = jax.tree.map(partial(jnp.where, number < plan.num_steps), after, progress)
        return after

    end = jax.lax.fori_loop(0, length, take_step, begin)
    if loop == "whole":
        end = jax.tree.map(partial(jnp.where, plan.num_steps > 0), end, begin)
    return finish_client(local, client, plan, end)


def plan_client(local: LocalRound, client: Client) -> Plan:
    """Draw the client's batches of this round, and a key for each of its steps."""
    key = local.key_of(client)
    now = local.download.now
    schedule = local.training.sampler.schedule(named_key(key, "batches"), client, now)
    masks = list(schedule.masks.values())
    numbers = jnp.arange(masks[0].shape[0], dtype=jnp.int32)
    # All keys at once: in the loop, each would be an operation of its own.
    keys = jax.vmap(partial(jax.random.fold_in, named_key(key, "step")))(numbers)
    own = (numbers < schedule.num_steps)[:, None]
    examples = sum(
        (jnp.sum(mask & own, dtype=jnp.int32) for mask in masks), start=jnp.zeros((), jnp.int32)
    )
    return Plan(Batch(schedule.positions, schedule.masks, keys), schedule.num_steps, examples)


def plain_gradient(at: LocalStep) -> tuple[Array, Packed, Losses]:
    """Compute the loss of all terms and its gradient, as `LocalStep.gradient`."""

    def objective(w: Packed) -> tuple[Array, Losses]:
        losses = at.evaluate(w, at.terms)
        return losses.total(at.terms), losses

    (loss, losses), gradient = jax.value_and_grad(objective, has_aux=True)(at.weights)
    return loss, gradient, losses


def loss_of(term: Term, step: Step) -> tuple[Array, PyTree]:
    """Return the loss of a term and its local state after the step.

    Raises:
        ConfigError: the loss is no floating-point scalar, or the local state changed its form.
    """
    result = term.loss(step)
    pair = isinstance(result, tuple) and len(result) == 2
    value, after = result if pair else (result, step.local)
    says = f"the loss of term {term.name!r}"
    if not re.fullmatch(r"b?float\d+\[\]", form := form_of(value)):
        raise ConfigError(
            f"{says} ({where(term.loss)}) returned {form}; return one floating-point number: the "
            "mean over the rows that `mask` of the batch marks"
        )
    if pair:
        says = f"{says} ({where(term.loss)}) returned (loss, local state)"
        compare_forms(says, "the local state", step.local, after)
    return value, after


def start_client(local: LocalRound, client: Client) -> ClientProgress:
    """Return the client before its first step: parameters, optimizer states and local states of
    the terms.
    """
    anchor = local.anchor_of(client)
    network = local.network_of(client)
    fresh = local.setup.local_optimizer.init
    optimizer = {group: fresh({group: anchor[group]}) for group in local.groups.names}
    optimizer = {**optimizer, **local.download.local_optimizer}
    kept: dict[str, PyTree] = {}
    if client.kept is not None:
        optimizer = {**optimizer, **client.kept.optimizer}
        kept = client.kept.terms
    return ClientProgress(
        params=anchor,
        model_state=local.statistics_of(client),
        optimizer=optimizer,
        local={
            term.name: term.client.start(
                local.download.terms[term.name],
                network.params,
                network.model_state,
                kept.get(term.name, ()),
            )
            for term in local.training.terms
        },
        loss=jnp.zeros(()),
    )


def take_local_step(
    local: LocalRound,
    client: Client,
    number: Int[Array, ""],
    batch: Batch,
    progress: ClientProgress,
) -> ClientProgress:
    """Take one local step: a phase for each parameter group that a term moves, in order."""
    own_key = jax.random.fold_in(labelling_key(local.download.key), client.id)
    streams = gather_streams(batch.positions, batch.masks, client, local.download.inputs, own_key)
    start = local.network_of(client)
    phases = local.phases
    for group, terms in phases.items():
        key = named_key(batch.key, group)
        seen = Step(streams, client, start, key, local.download.now, number)
        after = _move_group(local, progress, group, terms, seen)
        views = views_of(terms)
        if views and len(phases) > 1:
            # A group without a row in this step takes no step at all: no weight decay, no momentum.
            rows = jnp.any(jnp.concatenate([view.real(streams) for view in views]))
            after = jax.tree.map(
                lambda new, old, keep=rows: jnp.where(keep, new, old), after, progress
            )
        progress = after
    return progress


def _move_group(
    local: LocalRound, progress: ClientProgress, group: str, terms: tuple[Term, ...], seen: Step
) -> ClientProgress:
    """Move one parameter group: forward pass, losses of its terms, gradient, correction and
    optimizer.
    """
    setup = local.setup
    client = seen.client
    anchor = local.anchor_of(client)

    def correct(gradient: Packed, weights: Packed) -> Packed:
        """Correct a gradient by the federated optimizer, as `LocalStep.correct`."""
        if group not in local.groups.shared:
            return gradient
        return setup.federated_optimizer.correct(
            {group: gradient}, {group: weights}, {group: anchor[group]}, client.sent_by_optimizer
        )[group]

    def evaluate(at: LocalStep, weights: Packed, terms: tuple[Term, ...]) -> Losses:
        """Run a forward pass and compute the losses of these terms, as `LocalStep.evaluate`."""
        groups = local.unpack({**progress.params, group: weights})
        network = local.groups.combine(groups)
        model_state = local.unravel(progress.model_state)
        inputs, outputs, new_state = at.forward(
            setup.model, network, model_state, views_of(terms), at.inputs.streams, at.inputs.key
        )
        seen = at.inputs._replace(
            outputs=outputs,
            inputs=inputs,
            params=network,
            groups=groups,
            model_state=model_state,
        )
        values = {}
        after = {}
        for term in terms:
            value, own = loss_of(
                term,
                seen._replace(
                    sent=seen.client.sent.get(term.name, ()),
                    shared=local.download.now.shared.get(term.name, ()),
                    local=progress.local.get(term.name, ()),
                    key=named_key(seen.key, term.name),
                ),
            )
            values[term.name] = term.weight * value
            if term.name in progress.local:
                after[term.name] = own
        return Losses(values, after, ravel_pytree(new_state)[0], outputs)

    def plain(at: LocalStep) -> StepTaken:
        """Take the plain step: gradient, correction by the federated optimizer, local optimizer."""
        loss, slope, losses = at.gradient(at)
        gradient: Grouped = {group: at.correct(slope, at.weights)}
        weights = {group: at.weights}
        rate = local.rate_of(at.inputs.client)
        new, optimizer = descend(setup.local_optimizer, gradient, at.optimizer, weights, rate)
        after = {**progress.local, **losses.local}
        return StepTaken(new[group], optimizer, losses.model_state, after, loss, losses.outputs)

    # The training's wrapper is innermost, around the plain step; those of the terms follow.
    step: TakeStep = plain
    if local.training.wrap_step is not None:
        step = local.training.wrap_step(step)
    for term in terms:
        if term.client.wrap_step is not None:
            step = term.client.wrap_step(step, term.name)
    taken = step(
        LocalStep(
            inputs=seen,
            terms=terms,
            weights=progress.params[group],
            optimizer=progress.optimizer[group],
            packing=local.packings[group],
            unravel=local.unravel,
            gradient=plain_gradient,
            correct=correct,
            forward=forward_views,
            run=evaluate,
        )
    )
    return progress._replace(
        params={**progress.params, group: taken.weights},
        model_state=taken.model_state,
        optimizer={**progress.optimizer, group: taken.optimizer},
        local=taken.local,
        loss=progress.loss + taken.loss,
    )


@jax.named_scope(AVERAGE)
def finish_client(
    local: LocalRound, client: Client, plan: Plan, end: ClientProgress
) -> tuple[Total, Arrivals]:
    """Make a trained client's upload, its new state and its numbers for the log: (values to add up
    over the cohort, values to stack).

    An upload with a value that is not finite, also after transforms, is dropped: its weight is 0,
    the client's new state is discarded, and `Work.dropped` counts it. If the loss, parameters or
    batch statistics are not finite, the client is put back to its start before terms and upload
    transforms see it.
    """
    setup = local.setup
    groups = local.groups
    terms = local.training.terms
    begin = start_client(local, client)
    loss = end.loss
    # A client that diverged counts as untrained: it is put back to its start.
    finite = apart(is_finite((end.loss, end.params, end.model_state)))
    trained = finite & (plan.num_steps > 0)
    end = jax.tree.map(lambda new, old: jnp.where(trained, new, old), end, begin)
    result = _result_of(local, client, plan, begin, end)
    remembered = {term.name: term.client.remember(result) for term in terms if term.client.remember}
    seen = _seen_by_optimizer(local, client, plan, begin, end)
    upload, kept_by_optimizer = _upload_of(local, end, result, seen, trained)
    # One value that is not finite makes the whole upload count as lost.
    arrived = upload.arrived
    sound = is_finite((upload, remembered)) & arrived
    # Its numbers become 0, because NaN times a weight of 0 would still be NaN.
    upload = jax.tree.map(lambda x: jnp.where(sound, x, jnp.zeros_like(x)), upload)
    finite, trained = apart((finite & (sound | ~trained), trained & sound))
    work = Work(
        loss=jnp.where(finite, loss, 0.0),
        steps=jnp.where(finite, plan.num_steps, 0),
        examples=jnp.where(finite, plan.examples, 0),
        dropped=(~finite).astype(jnp.int32),
    )
    lost = jnp.zeros((), bool)
    if (participation := setup.participation) is not None:
        lost = participation.lost_after_training(local.download.now, client.id[None])[0] & trained
        arrived = arrived & ~lost
        upload = jax.tree.map(lambda x: jnp.where(lost, jnp.zeros_like(x), x), upload)
    counted = trained & ~lost
    total = _total_of(local, upload, seen, counted, work)
    kept = Kept(
        params={group: end.params[group] for group in groups.private},
        optimizer=end.optimizer if setup.keep_optimizer else {},
        terms=remembered,
        federated=kept_by_optimizer,
        model_state=end.model_state if groups.own_statistics else (),
    )
    return total, Arrivals(
        terms=upload.terms,
        counts=counted,
        arrived=arrived,
        lost=lost,
        kept=kept,
        measured={term.name: term.log.measure(result) for term in terms},
        parts=() if setup.combine_uploads is None else total,
    )


def _result_of(
    local: LocalRound, client: Client, plan: Plan, begin: ClientProgress, end: ClientProgress
) -> ClientResult:
    """Return a client after local training, for its terms."""
    groups = local.unpack(end.params)
    download = local.download
    return ClientResult(
        client=client,
        params=local.groups.combine(groups),
        groups=groups,
        start_params=local.unpack(begin.params),
        model_state=local.unravel(end.model_state),
        local=end.local,
        num_steps=plan.num_steps,
        inputs=download.inputs,
        validation=download.validation,
        key=local.key_of(client),
        now=download.now,
        test=download.test,
    )


def _seen_by_optimizer(
    local: LocalRound, client: Client, plan: Plan, begin: ClientProgress, end: ClientProgress
) -> Local:
    """Return a trained client for the federated optimizer, without its weights."""
    anchor = {group: begin.params[group] for group in local.groups.shared}
    params = {group: end.params[group] for group in local.groups.shared}
    return Local(
        anchor=anchor,
        params=params,
        change=jax.tree.map(jnp.subtract, params, anchor),
        weights={},
        num_steps=plan.num_steps,
        learning_rate=local.rate_of(client),
        sent_by_optimizer=client.sent_by_optimizer,
        kept=() if client.kept is None else client.kept.federated,
    )


def _weights_of(local: LocalRound, weight: Float[Array, ""]) -> dict[str, Float[Array, ""]]:
    """Return a client's weight by group, 0 for groups that it did not train."""
    phases = local.phases
    return {
        group: weight if group in phases else jnp.zeros_like(weight)
        for group in local.groups.shared
    }


def _upload_of(
    local: LocalRound,
    end: ClientProgress,
    result: ClientResult,
    seen: Local,
    trained: Bool[Array, ""],
) -> tuple[Upload, PyTree]:
    """Return a client's upload after the upload transforms, and its new state for the federated
    optimizer.
    """
    setup = local.setup
    terms = {term.name: term.client.collect(result) for term in local.training.terms}
    averages = {term.name: term.client.average(result) for term in local.training.terms}
    weigh = local.training.weigh
    client = result.client
    weight = WEIGHTINGS[setup.weighting](client) if weigh is None else weigh(client, terms)
    weights = _weights_of(local, jnp.where(trained, weight, 0.0))
    reported, kept = setup.federated_optimizer.report(seen._replace(weights=weights))
    statistics = end.model_state - local.statistics
    upload = Upload(
        update=seen.change,
        statistics=jnp.zeros_like(statistics) if local.groups.own_statistics else statistics,
        optimizer={
            group: end.optimizer[group] for group in local.groups.shared if setup.average_optimizer
        },
        terms=terms,
        averages=averages,
        weight=weight,
        arrived=jnp.ones((), bool),
        reported=reported,
    )
    if (change := local.uploads.at_client) is not None:
        key = named_key(result.key, "uploads")
        upload = change(key, upload, result, local.download.uploads)
    return upload, kept


def _total_of(
    local: LocalRound, upload: Upload, seen: Local, counts: Bool[Array, ""], work: Work
) -> Total:
    """Return a client's part of the sum over uploads; 0 if the client does not count."""

    def if_counted(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.where(counts, x, jnp.zeros_like(x)), tree)

    weight = jnp.where(counts, upload.weight, 0.0)
    weights = _weights_of(local, weight)
    params = seen.params
    if local.uploads.at_client is not None:
        params = jax.tree.map(jnp.add, seen.anchor, upload.update)
    arrived = seen._replace(params=params, change=upload.update, weights=weights)
    added, update, reported = local.setup.federated_optimizer.add(
        arrived, if_counted(upload.reported)
    )
    return Total(
        update=update,
        weights=added,
        reported=reported,
        statistics=weight.astype(local.statistics.dtype) * upload.statistics,
        optimizer={
            group: (weights[group], _times(weights[group], state))
            for group, state in if_counted(upload.optimizer).items()
        },
        averages=_times(weight, upload.averages),
        weight=weight,
        work=work,
    )


def _times(weight: Float[Array, ""], tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: weight * x.astype(weight.dtype), tree)
