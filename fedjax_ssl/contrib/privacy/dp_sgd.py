"""Example-level differential privacy: clients take the local steps of DP-SGD.

A step draws each of a client's n labelled examples with probability B/n, whatever the others do,
shortens the gradient of each to the norm C, and moves by

    (sum_i g_i min(1, C/|g_i|) + N(0, z^2 C^2)) / B

where B is the batch size, independent of the number drawn. All results of these steps (the client's
model, its update, the global model) hide a single example, from the server too; other messages of a
client are refused.

References:
    Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar and Zhang, Deep learning with differential
    privacy, CCS 2016.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from fedjax_ssl.checks import In, checked
from fedjax_ssl.contrib.privacy._account import Account, Sampled, opened
from fedjax_ssl.contrib.privacy._leaks import beside, refuse_alone, refuse_more
from fedjax_ssl.contrib.privacy._run import PrivateRun
from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated import (
    Client,
    ClientResult,
    LocalStep,
    Losses,
    Now,
    Packed,
    PyTree,
    Recipe,
    Sampler,
    Schedule,
    Stage,
    TakeStep,
    Upload,
    labelled_epochs,
    plain_gradient,
    what_leaves,
)
from fedjax_ssl.federated.uploads import UploadTransform
from fedjax_ssl.keys import named_key
from fedjax_ssl.objectives import batch_mean
from fedjax_ssl.runs import Earlier

# Deviations above the mean number of drawn examples for which there are slots.
_DEVIATIONS = 5
_STREAM = "labelled"
# Parts of an upload that follow from the private steps alone: by the names of `what_leaves`, and by
# the fields of `Upload`.
_COVERED = ("update", "optimizer", "weight", "report")
_OF_UPLOAD = ("update", "optimizer", "weight", "reported")


@checked
@dataclasses.dataclass(frozen=True)
class DPSGD:
    """Mechanism that hides every single example by noisy local steps (Abadi et al. 2016).

    Attributes:
        noise: z, deviation of the noise in units of the clip norm; solved for epsilon where it is
            not given.
        epsilon: budget of every example; a run ends before the round that would exceed it.
        delta: probability with which the bound may fail; below 1 over the examples of any client.
        clip: C, largest norm of an example's gradient.
    """

    noise: Annotated[float | Array | None, In("[0, inf)")] = None
    epsilon: Annotated[float | None, In("(0, inf)")] = None
    delta: Annotated[float, In("(0, 1)")] = 1e-5
    clip: Annotated[float | Array, In("(0, inf)")] = 1.0

    def slots_of(self, clients: int, expected: int) -> int:
        """Return the most clients of a round, see `Mechanism`."""
        return expected

    def account(
        self, sizes: tuple[int, int], labelled: tuple[int, int], config: Any, earlier: Earlier
    ) -> Account:
        """Return the account of a run's privacy, see `Mechanism`."""
        clients, expected = sizes
        local = config.optimizer
        steps = mechanisms(local.batch_size, local.local_epochs, local.local_steps, labelled)
        cohorts = Sampled(clients, expected, expected)
        account = Account(cohorts, math.nan, "pld", math.nan, steps, earlier)
        return opened(account, self, labelled[1], "example", config.rounds)

    def private(self, recipe: Recipe, noise: float | Array, cohorts: Sampled) -> Recipe:
        """Return a method whose clients take private steps, see `Mechanism`."""
        _refuse(recipe)
        setup = recipe.setup

        def noisy(step: TakeStep) -> TakeStep:
            return with_noisy_gradients(step, self.clip, noise, setup.batch_size)

        def in_private_steps(stage: Stage) -> Stage:
            clients = stage.clients
            sampler = poisson_batches(setup.batch_size, setup.local_epochs, setup.max_labelled)
            return stage._replace(
                clients=clients and clients._replace(sampler=sampler, wrap_step=noisy)
            )

        def at_client(
            key: Key[Array, ""], upload: Upload, trained: ClientResult, state: PyTree
        ) -> Upload:
            refuse_more(upload, _OF_UPLOAD)
            return upload

        guard = UploadTransform("dp_sgd", at_client=at_client)
        return recipe._replace(
            setup=setup._replace(uploads=(*setup.uploads, guard)),
            stages=tuple(map(in_private_steps, recipe.stages)),
        )

    def in_run(self, account: Account, rounds: int, outside: tuple[str, ...] = ()) -> PrivateRun:
        """Return its account in a run, see `Mechanism`."""
        return PrivateRun(account, self, rounds, outside)


def dp_sgd(settings: DPSGD) -> DPSGD:
    """Hide an example, from the server too: clients take noisy steps of clipped gradients."""
    return settings


def mechanisms(
    batch_size: int, epochs: int, steps: int | None, sizes: tuple[int, int]
) -> tuple[tuple[Sampled, int], ...]:
    """Return the sampling of batches and the steps of a round, for the clients that may have the
    largest epsilon.

    Among clients with equally many steps, this is the smallest one, whose examples are drawn most
    often.

    Args:
        batch_size: B.
        epochs: over a client's examples, in a round.
        steps: in a round, in place of epochs.
        sizes: labelled examples of the smallest client that has some, and of the largest.

    Example:
        >>> mechanisms(batch_size=4, epochs=2, steps=None, sizes=(6, 9))
        ((Sampled(clients=6, expected=4, slots=6), 4), (Sampled(clients=9, expected=4, slots=9), 6))
    """

    def of_sizes() -> Iterator[tuple[Sampled, int]]:
        smallest, largest = sizes
        slots = slots_of(batch_size)
        number = smallest
        while number <= largest:
            batches = -(-number // batch_size)
            drawn = Sampled(number, min(batch_size, number), min(slots, number))
            yield drawn, epochs * batches if steps is None else steps
            number = largest + 1 if steps is not None else batches * batch_size + 1

    return tuple(of_sizes())


def slots_of(batch_size: int) -> int:
    """Return the rows of a batch of this size on average."""
    return math.ceil(batch_size + _DEVIATIONS * math.sqrt(batch_size))


def poisson_batches(
    batch_size: int, local_epochs: int, max_labelled: int, steps: int | None = None
) -> Sampler:
    """Batches of stream "labelled" by Poisson sampling, as privacy accounting assumes: every
    example is in with the same probability, independent of the others. If more examples are drawn
    than there are slots, a random subset of them is used.

    Args:
        batch_size: B, examples of a batch on average; of a client with fewer, all.
        local_epochs: an epoch is as many steps as whole passes over the examples would take.
        max_labelled: static bound of labelled examples per client.
        steps: in a round, in place of epochs.
    """
    # The draw must not depend on how wide tables are.
    slots = slots_of(batch_size)
    size = max(max_labelled, slots)
    most = local_epochs * -(-max(max_labelled, 1) // batch_size) if steps is None else steps

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        number = client.num_labelled
        mine = jnp.arange(size, dtype=jnp.int32) < number
        share = batch_size / jnp.maximum(number, 1).astype(jnp.float32)

        def one_step(step: Int[Array, ""]) -> tuple[Array, Array]:
            own = jax.random.fold_in(named_key(key, "labelled"), step)
            drawn = jax.random.uniform(own, (size,), jnp.float32)
            is_in = mine & (drawn < share)
            _, places = jax.lax.top_k(jnp.where(is_in, 1.0 - drawn, -1.0), slots)
            return places.astype(jnp.int32), is_in[places]

        positions, masks = jax.vmap(one_step)(jnp.arange(most, dtype=jnp.int32))
        taken = local_epochs * -(-number // batch_size) if steps is None else jnp.asarray(steps)
        taken = jnp.where(number > 0, taken, 0).astype(jnp.int32)
        return Schedule({_STREAM: positions}, {_STREAM: masks}, taken)

    def going_on(steps: int) -> Sampler:
        return poisson_batches(batch_size, local_epochs, max_labelled, steps)

    return Sampler(schedule, going_on=going_on)


def with_noisy_gradients(
    step: TakeStep, clip: float | Array, noise: float | Array, batch_size: int
) -> TakeStep:
    """Take a local step by the sum of clipped gradients plus noise, divided by the expected batch
    size.

    Args:
        step: local step with the gradient of the batch.
        clip: C.
        noise: z.
        batch_size: B.
    """

    def noisy(at: LocalStep) -> tuple[Float[Array, ""], Packed, Losses]:
        batch = at.inputs.streams[_STREAM]
        slots = batch.mask.shape[0]

        def of_row(place: Int[Array, ""]) -> tuple[Array, Packed, Losses]:
            row = jax.tree.map(lambda x: x[place][None], batch._replace(key=None))
            inputs = at.inputs._replace(
                streams={_STREAM: row._replace(key=batch.key)},
                key=jax.random.fold_in(at.inputs.key, place),
            )
            return plain_gradient(at._replace(inputs=inputs))

        loss, slopes, losses = jax.vmap(of_row)(jnp.arange(slots, dtype=jnp.int32))
        norms = jax.vmap(optax.tree.norm)(slopes)
        counts = batch.mask & jnp.isfinite(norms) & jnp.isfinite(loss)
        slopes = jax.tree.map(
            lambda x: jnp.where(counts.reshape(-1, *[1] * (x.ndim - 1)), x, 0.0), slopes
        )
        key = named_key(at.inputs.key, "noise")
        private = optax.contrib.differentially_private_aggregate(clip, noise, key)
        mean, _ = private.update(slopes, private.init(at.weights))
        rescaled = jax.tree.map(lambda x: x * (slots / batch_size), mean)
        logged = batch_mean(loss, counts)
        outputs = jax.tree.map(lambda x: x[:, 0], losses.outputs)
        one = jax.tree.map(lambda x: x[0], losses)
        return logged, rescaled, one._replace(outputs=outputs)

    return lambda at: step(at._replace(gradient=noisy))


def _refuse(recipe: Recipe) -> None:
    """Raise ConfigError if a client sends more than results of its private steps, or learns by
    other steps.
    """
    begin = "config.privacy.name='dp_sgd' protects what the steps of clients make of examples, but "
    setup = recipe.setup
    refuse_alone(recipe, begin)
    usual = labelled_epochs(setup.batch_size, setup.local_epochs, setup.max_labelled)
    for stage in recipe.stages:
        clients = stage.clients
        supervised = [term.name for term in stage.client_terms] == ["supervised"]
        plain = clients and clients.sampler is usual and clients.wrap_step is None
        if not (supervised and plain):
            raise ConfigError(
                f"{begin}clients of {recipe.name or 'this method'} do more than to learn from "
                "labelled examples one by one; use config.method.name=fedavg, without "
                "config.around and config.personalize"
            )
    if what_leaves(recipe)["weight"]:
        raise ConfigError(
            f"{begin}clients have weights in the average that follow from their data; use "
            "config.federated.weighting=uniform"
        )
    if more := beside(recipe, _COVERED):
        raise ConfigError(
            f"{begin}also {', '.join(more)} would leave the clients; use another method, or a "
            "network without batch norm (config.model.norm=gn or none)"
        )
