"""Local training: one client, one round.

One local step builds the views that the terms ask for, runs one forward pass over all of them, hands every term its
slice, adds the weighted losses, takes one gradient and one optimizer update. With several parameter groups the step
has one such phase per group, in order; a loss moves only its own group, because only that group is differentiated.

Parameters are carried in few arrays per group, see `fedjax_ssl.federated.packing`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.federated.method import Client, Params, Sampler, Schedule, Step, Stream, Term, Trained, View
from fedjax_ssl.federated.optimizers import FederatedOptimizer, Grouped, Local
from fedjax_ssl.federated.packing import Packed, packing
from fedjax_ssl.keys import named_key
from fedjax_ssl.models import Model, Outputs

PyTree = Any


class LocalTraining(NamedTuple):
    """What stays the same for every client and round."""

    model: Model
    combine: Callable[[Params], PyTree]  # parameter groups -> the network's parameters
    groups: tuple[str, ...]  # order of the phases within a local step
    optimizer: optax.GradientTransformation
    federated_optimizer: FederatedOptimizer
    weighting: Callable[[Client], Float[Array, ""]]


class Broadcast(NamedTuple):
    """What every client of the cohort receives, and the round it is received in."""

    key: Key[Array, ""]
    number: Int[Array, ""]  # rounds since the stage began
    learning_rate: Float[Array, ""]
    params: Params
    model_state: PyTree
    terms: dict[str, PyTree]  # server state of the terms, from which local states start
    inputs: Array


class Progress(NamedTuple):
    """A client in the middle of its local training."""

    params: Grouped
    model_state: Array  # in one vector
    optimizer: dict[str, PyTree]
    local: dict[str, PyTree]
    loss: Float[Array, ""]  # sum over steps
    examples: Int[Array, ""]  # rows that entered a loss, over all steps


class Batch(NamedTuple):
    """Which of its examples a client uses in one local step, by stream."""

    positions: dict[str, Int[Array, " b"]]
    masks: dict[str, Bool[Array, " b"]]


class ClientUpdate(NamedTuple):
    """Local training of one client in one round, cut into pieces that a placement puts together."""

    schedule: Callable[[Client], Schedule]
    start: Progress  # the same for every client
    step: Callable[[Client, Int[Array, ""], Batch, Progress], Progress]  # (client, number of the step, batch, progress)
    finish: Callable[[Client, Int[Array, ""], Progress], tuple[PyTree, PyTree]]
    # ^ (client, steps taken, progress) -> (what is summed over the cohort, what is stacked over it)


def train_client(update: ClientUpdate, client: Client) -> tuple[PyTree, PyTree]:
    """Trains one client.

    Returns:
        (what is summed over the cohort, what is stacked over it). An update with a value that is not finite is
        dropped: it weighs nothing, and is counted in "dropped".
    """
    schedule = update.schedule(client)

    def one_step(number: Int[Array, ""], progress: Progress) -> Progress:
        return update.step(client, number, batch_of(schedule, number), progress)

    # A loop with a traced bound: a client takes exactly its own number of steps. Nothing differentiates through it.
    end = jax.lax.fori_loop(0, schedule.num_steps, one_step, update.start)
    return update.finish(client, schedule.num_steps, end)


def batch_of(schedule: Schedule, *place: Int[Array, ""]) -> Batch:
    """One batch of a schedule: of step `place`, or of (client, step) where schedules are stacked."""
    return Batch(*jax.tree.map(lambda table: table[place], (schedule.positions, schedule.masks)))


def client_update(
    training: LocalTraining, all_terms: tuple[Term, ...], sampler: Sampler, broadcast: Broadcast
) -> ClientUpdate:
    """The pieces of local training in one round."""
    packings = {group: packing(broadcast.params[group]) for group in training.groups}
    anchor = {group: packings[group].pack(broadcast.params[group]) for group in training.groups}
    flat_state, unravel_state = ravel_pytree(broadcast.model_state)
    network = training.combine(broadcast.params)

    def to_params(grouped: Grouped) -> Params:
        return {group: packings[group].unpack(grouped[group]) for group in training.groups}

    def key_of(client: Client) -> Key[Array, ""]:
        return jax.random.fold_in(named_key(broadcast.key, "client"), client.id)

    def schedule(client: Client) -> Schedule:
        return sampler.schedule(named_key(key_of(client), "batches"), client)

    def step(client: Client, number: Int[Array, ""], batch: Batch, progress: Progress) -> Progress:
        step_key = jax.random.fold_in(named_key(key_of(client), "step"), number)
        streams = _gather_streams(batch, client, broadcast.inputs)
        examples = progress.examples
        for mask in (stream.mask for stream in streams.values()):
            examples = examples + jnp.sum(mask, dtype=jnp.int32)
        progress = progress._replace(examples=examples)
        for group in training.groups:
            terms = [term for term in all_terms if term.group == group]
            if terms:
                progress = one_phase(client, progress, number, group, terms, streams, named_key(step_key, group))
        return progress

    def one_phase(
        client: Client,
        progress: Progress,
        number: Int[Array, ""],
        group: str,
        terms: list[Term],
        streams: dict[str, Stream],
        phase_key: Key[Array, ""],
    ) -> Progress:
        def objective(one_group: Packed) -> tuple[Array, tuple[Array, dict[str, PyTree]]]:
            groups = to_params({**progress.params, group: one_group})
            params = training.combine(groups)
            model_state = unravel_state(progress.model_state)
            inputs, outputs, new_state = _forward(
                training.model, params, model_state, _views(terms), streams, phase_key
            )
            total, local = jnp.zeros(()), dict(progress.local)
            for term in terms:
                step = Step(
                    outputs=outputs,
                    inputs=inputs,
                    streams=streams,
                    client=client,
                    local=progress.local[term.name],
                    params=params,
                    groups=groups,
                    model_state=model_state,
                    key=named_key(phase_key, term.name),
                    round=broadcast.number,
                    number=number,
                )
                value, local[term.name] = term.loss(step)
                total = total + term.weight * value
            return total, (ravel_pytree(new_state)[0], local)

        (loss, (model_state, local)), gradient = jax.value_and_grad(objective, has_aux=True)(progress.params[group])
        only = {group: progress.params[group]}
        gradient = training.federated_optimizer.correct(
            {group: gradient}, only, {group: anchor[group]}, client.variates
        )
        updates, optimizer_state = training.optimizer.update(gradient, progress.optimizer[group], only)
        new = jax.tree.map(lambda w, update: w - broadcast.learning_rate * update, only, updates)
        params = {**progress.params, **new}
        moved = training.combine(to_params(params))
        for term in terms:
            local[term.name] = term.after_step(local[term.name], moved)
        return Progress(
            params=params,
            model_state=model_state,
            optimizer={**progress.optimizer, group: optimizer_state},
            local=local,
            loss=progress.loss + loss,
            examples=progress.examples,
        )

    start = Progress(
        params=anchor,
        model_state=flat_state,
        optimizer={group: training.optimizer.init({group: anchor[group]}) for group in training.groups},
        local={term.name: term.start(broadcast.terms[term.name], network, broadcast.model_state) for term in all_terms},
        loss=jnp.zeros(()),
        examples=jnp.zeros((), jnp.int32),
    )

    def finish(client: Client, num_steps: Int[Array, ""], end: Progress) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
        finite = jnp.isfinite(end.loss)
        for values in jax.tree.leaves((end.params, end.model_state)):
            finite = finite & jnp.all(jnp.isfinite(values))
        trained = finite & (num_steps > 0)
        weight = jnp.where(trained, training.weighting(client), 0.0)
        params = jax.tree.map(lambda new, old: jnp.where(trained, new, old), end.params, anchor)
        model_state = jnp.where(trained, end.model_state, flat_state)
        local_state = jax.tree.map(lambda new, old: jnp.where(trained, new, old), end.local, start.local)
        report = training.federated_optimizer.report(
            Local(anchor, params, weight, num_steps, broadcast.learning_rate, client.variates)
        )
        groups = to_params(params)
        key = key_of(client)
        result = Trained(client, training.combine(groups), groups, unravel_state(model_state), broadcast.inputs, key)
        uploads = {term.name: term.collect(result) for term in all_terms}
        summed = {
            "optimizer": report.summed,
            "weight": weight,
            "model_state": weight.astype(flat_state.dtype) * (model_state - flat_state),
            "local": jax.tree.map(lambda x: weight * x.astype(weight.dtype), local_state),
            "loss": jnp.where(finite, end.loss, 0.0),
            "steps": jnp.where(finite, num_steps, 0),
            "examples": jnp.where(finite, end.examples, 0),
            "dropped": (~finite).astype(jnp.int32),
        }
        return summed, {"optimizer": report.kept, "uploads": uploads, "counts": weight > 0}

    return ClientUpdate(schedule, start, step, finish)


def _gather_streams(batch: Batch, client: Client, inputs: Array) -> dict[str, Stream]:
    streams = {}
    for name, position in batch.positions.items():
        mask = batch.masks[name]
        observed = jnp.where(mask, client.observed[position], -1)
        rows = inputs[client.index[position]]
        # Padding points to row 0, which may be another client's NaN: a zero loss would still have a NaN gradient.
        real = mask.reshape(-1, *[1] * (rows.ndim - 1))
        weak = None if client.weak is None else jnp.where(mask, client.weak.labels[position], -1)
        streams[name] = Stream(position, mask, observed, jnp.where(real, rows, jnp.zeros_like(rows)), weak)
    return streams


def _views(terms: list[Term]) -> tuple[View, ...]:
    """The views of all terms, each once."""
    by_name = {view.name: view for term in terms for view in term.views}
    return tuple(by_name.values())


def _forward(
    model: Model,
    params: PyTree,
    model_state: PyTree,
    views: tuple[View, ...],
    streams: dict[str, Stream],
    key: Key[Array, ""],
) -> tuple[dict[str, Array], dict[str, Outputs], PyTree]:
    """One forward pass over the concatenated views, cut again by view."""
    inputs = {view.name: view.build(named_key(key, view.name), streams) for view in views}
    outputs, new_state = model.apply(
        params,
        model_state,
        jnp.concatenate([inputs[view.name] for view in views]),
        train=True,
        key=named_key(key, "dropout"),
        mask=jnp.concatenate([streams[view.stream].mask for view in views]),
    )
    slices, offset = {}, 0
    for view in views:
        rows = inputs[view.name].shape[0]
        slices[view.name] = jax.tree.map(lambda x, at=offset, n=rows: x[at : at + n], outputs)
        offset += rows
    return inputs, slices, new_state
