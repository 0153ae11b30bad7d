"""Client-level differential privacy: a client's change of the round's sum is bounded, and noise is
added to the sum.

References:
    McMahan, Ramage, Talwar and Zhang, Learning differentially private recurrent language models,
    ICLR 2018: flat clipping, fixed denominator. Andrew, Thakkar, McMahan and Ramaswamy,
    Differentially private learning with adaptive clipping, NeurIPS 2021: the norm follows a
    quantile of the clients' norms.
"""

import dataclasses
import math
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from fedjax_ssl.checks import In, Whole, checked
from fedjax_ssl.contrib.privacy._account import Account, Sampled, opened
from fedjax_ssl.contrib.privacy._leaks import beside, refuse_alone, refuse_more
from fedjax_ssl.contrib.privacy._run import PrivateRun
from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated import (
    ClientResult,
    Cohort,
    CohortSampler,
    Params,
    PyTree,
    Recipe,
    RoundContext,
    Total,
    Upload,
    what_leaves,
)
from fedjax_ssl.federated.uploads import UploadTransform
from fedjax_ssl.runs import Earlier

_COVERED = ("update", "weight")
_WITHIN = "within_clip"  # name in `Upload.averages`
# Deviations above the mean number of drawn clients for which there are slots.
_DEVIATIONS = 5


@checked
@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Mechanism that adds Gaussian noise to the sum of clipped updates at the server (McMahan et
    al. 2018).

    Attributes:
        noise: z, deviation of the noise in units of the clip norm; solved for epsilon where it is
            not given.
        epsilon: budget; a run ends before the round that would exceed it.
        delta: probability with which the bound may fail; by default N^-1.1 for N clients.
        clip: largest norm of a client's whole update, and where an adaptive one starts.
        quantile: share of updates that are to be shorter than the clip norm, which then follows
            their norms (Andrew et al. 2021; they take 0.5); by default it stays as it is.
        clip_rate: how fast an adaptive clip norm moves, in its logarithm.
        count_noise: deviation of the noise on the count behind an adaptive clip norm; by default a
            20th of the expected cohort.
        slots: most clients of a round, of which as many as federated.cohort_size are drawn on
            average; by default so many that more are almost never drawn.
        accountant: pld (tight) or rdp (fast; every client has to have a slot).
    """

    noise: Annotated[float | Array | None, In("[0, inf)")] = None
    epsilon: Annotated[float | None, In("(0, inf)")] = None
    delta: Annotated[float | None, In("(0, 1)")] = None
    clip: Annotated[float | Array, In("(0, inf)")] = 1.0
    quantile: Annotated[float | Array | None, In("(0, 1)")] = None
    clip_rate: Annotated[float | Array, In("(0, inf)")] = 0.2
    count_noise: Annotated[float | None, In("(0, inf)")] = None
    slots: Annotated[int | None, Whole(1)] = None
    accountant: Literal["pld", "rdp"] = "pld"

    def sampled(self, clients: int, expected: int) -> Sampled:
        """Return the sampling of a federation's cohorts.

        Args:
            clients: N.
            expected: clients of a round on average, n.

        Raises:
            ValueError: slots for fewer than that, or for more than there are; or the accountant
                has no account of them.
        """
        share = expected / clients
        usual = expected + _DEVIATIONS * math.sqrt(expected * (1 - share))
        slots = min(math.ceil(usual), clients) if self.slots is None else self.slots
        if self.accountant == "rdp":
            slots = clients if self.slots is None else self.slots
            if slots < clients:
                raise ValueError(
                    f"slots is {slots} for {clients} clients, and accountant 'rdp' has no account "
                    "of cohorts that are cut; leave slots out, or use accountant 'pld'"
                )
        if not expected <= slots <= clients:
            raise ValueError(
                f"slots is {slots}; with federated.cohort_size {expected} and {clients} clients it "
                f"must be {expected}..{clients}"
            )
        return Sampled(clients, expected, slots)

    def deviation_of_count(self, expected: int) -> float:
        """Return the deviation of the noise on the count of short updates, sigma_b."""
        return expected / 20 if self.count_noise is None else self.count_noise

    def slots_of(self, clients: int, expected: int) -> int:
        """Return the most clients of a round, see `Mechanism`."""
        return self.sampled(clients, expected).slots

    def account(
        self, sizes: tuple[int, int], labelled: tuple[int, int], config: Any, earlier: Earlier
    ) -> Account:
        """Return the account of a run's privacy, see `Mechanism`."""
        clients, expected = sizes
        cohorts = self.sampled(clients, expected)
        account = Account(cohorts, math.nan, self.accountant, math.nan, earlier=earlier)
        account = opened(account, self, clients, "client", config.rounds)
        limit = 2 * self.deviation_of_count(expected)
        if self.quantile is not None and account.noise >= limit:
            raise ValueError(
                f"quantile is given, and noise {account.noise:.4g} is not below {limit:.4g}, twice "
                f"count_noise: the count of {expected} clients would be too noisy to be paid for; "
                f"give count_noise above {account.noise / 2:.4g}, a larger federated.cohort_size, "
                "or a clip norm that stays (quantile=None)"
            )
        return account

    def private(self, recipe: Recipe, noise: float | Array, cohorts: Sampled) -> Recipe:
        """Return a method that reveals only noisy sums of updates, see `Mechanism`.

        Example:
            >>> from fedjax_ssl.contrib.privacy.gaussian import Gaussian, Sampled
            >>> from fedjax_ssl.testing import toy
            >>> data = toy.federation()
            >>> recipe = fs.methods.recipe("fedavg", toy.setup(data))
            >>> everybody = Sampled(data.num_clients, data.num_clients, data.num_clients)
            >>> recipe = Gaussian(clip=0.5).private(recipe, 1.0, everybody)
            >>> _, rows = fs.train(recipe, data, rounds=2, key=jax.random.key(0))
            >>> len(rows)
            2
        """
        refuse_leaks(recipe)
        setup = recipe.setup
        setup = setup._replace(
            draw_cohort=poisson(cohorts.probability),
            uploads=(*setup.uploads, private_sum(self, noise, cohorts.expected)),
        )
        return recipe._replace(setup=setup)

    def in_run(self, account: Account, rounds: int, outside: tuple[str, ...] = ()) -> PrivateRun:
        """Return its account in a run, see `Mechanism`."""
        return PrivateRun(account, self, rounds, outside)


def gaussian(settings: Gaussian) -> Gaussian:
    """Hide a client: the sum of clipped updates gets Gaussian noise at the server."""
    return settings


def poisson(probability: float) -> CohortSampler:
    """Draw the cohort by Poisson sampling, as privacy accounting assumes: every client takes part
    with the same probability, independent of the others and of its data. If more clients are drawn
    than there are slots, a random subset of them takes part.

    Args:
        probability: probability of a client in a round, in (0, 1].
    """

    def draw(
        key: Key[Array, ""],
        num_labelled: Int[Array, " C"],
        num_examples: Int[Array, " C"],
        size: int,
        labelled_quota: str,
    ) -> Cohort:
        clients = num_examples.shape[0]
        drawn = jax.random.uniform(key, (clients,), jnp.float32)
        # Drawn clients have uniform numbers below the probability: the lowest of these are a random
        # subset.
        highest, ids = jax.lax.top_k(jnp.where(drawn < probability, 1.0 - drawn, -1.0), size)
        ids = jnp.sort(jnp.where(highest >= 0, ids, clients)).astype(jnp.int32)
        return Cohort(ids, ids < clients)

    return draw


class Clip(NamedTuple):
    """State of the transform at the server."""

    norm: Float[Array, ""]  # S, largest norm of an update


def private_sum(settings: Gaussian, noise: float | Array, expected: int) -> UploadTransform:
    """Return the transform that clips whole updates at clients and adds noise to their sum.

    It knows nothing of what a method sends outside of uploads: `Gaussian.private` does.

    With n the expected cohort, S the clip norm and z the noise, the model moves by (sum_k Delta_k
    min(1, S/|Delta_k|) + N(0, z^2 S^2)) / n: the denominator is fixed, and an empty cohort adds
    noise too. The noise depends on the run's key.

    An adaptive norm costs nothing more: with sigma_b on the count of updates shorter than S, the
    sum gets (z^-2 - (2 sigma_b)^-2)^(-1/2), and both together cost what one sum with z costs.

    Args:
        settings: settings of the mechanism.
        noise: z; may be traced.
        expected: n.
    """
    adaptive = settings.quantile is not None
    of_count = settings.deviation_of_count(expected)
    of_sum = noise
    if adaptive:
        of_sum = noise_beside_a_count(noise, of_count)

    def at_client(
        key: Key[Array, ""], upload: Upload, trained: ClientResult, state: Clip
    ) -> Upload:
        refuse_more(upload, _COVERED)
        update, norm = clipped(upload.update, state.norm)
        upload = upload._replace(update=update, weight=jnp.ones_like(upload.weight))
        if not adaptive:
            return upload
        within = jnp.where(norm <= state.norm, 0.5, -0.5)
        return upload._replace(averages={**upload.averages, _WITHIN: within})

    def at_server(
        key: Key[Array, ""], total: Total, context: RoundContext, state: Clip
    ) -> tuple[Total, Clip]:
        of_update, key_of_count = jax.random.split(key)
        weight = jnp.full_like(total.weight, expected)
        after = total._replace(
            update=with_noise(of_update, total.update, of_sum * state.norm),
            weights=dict.fromkeys(total.weights, weight),
            weight=weight,
        )
        if not adaptive:
            return after, state
        count = total.averages[_WITHIN] + of_count * jax.random.normal(key_of_count)
        # Only this function sees the count without noise.
        after = after._replace(averages={**total.averages, _WITHIN: count})
        return after, Clip(moved(state.norm, 0.5 + count / expected, settings))

    return UploadTransform(
        "gaussian",
        init=lambda params: Clip(jnp.asarray(settings.clip, jnp.result_type(float))),
        at_client=at_client,
        at_server=at_server,
    )


def clipped(update: Params, largest: float | Float[Array, ""]) -> tuple[Params, Float[Array, ""]]:
    """Clip an update to a norm over all of it: return (update, its norm before).

    An update whose norm is not finite becomes 0.

    Example:
        >>> update, norm = clipped({"model": jnp.array([3.0, 4.0])}, 1.0)
        >>> float(norm), [f"{number:.2f}" for number in update["model"]]
        (5.0, ['0.60', '0.80'])
    """
    norm = optax.tree.norm(update)
    finite = jnp.isfinite(norm)
    scale = jnp.minimum(1.0, largest / jnp.where(norm > 0, norm, 1.0))
    return jax.tree.map(lambda x: jnp.where(finite, scale * x, 0.0), update), norm


def with_noise(key: Key[Array, ""], total: PyTree, deviation: Float[Array, ""]) -> PyTree:
    """Return a sum with Gaussian noise added to every number."""
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + deviation * jax.random.normal(one, leaf.shape, leaf.dtype)
        for one, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def noise_beside_a_count(noise: float | Array, of_count: float) -> Any:
    """Return the noise z_Delta of the sum, with which sum and count together cost as much as noise
    z.
    """
    return (noise**-2.0 - (2.0 * of_count) ** -2.0) ** -0.5


def moved(norm: Float[Array, ""], share: Float[Array, ""], settings: Gaussian) -> Float[Array, ""]:
    """Return the next clip norm, which is larger if too few updates are shorter than it.

    Args:
        norm: S.
        share: share of updates within the norm; noisy, so it may be outside [0, 1].
        settings: with the quantile and the rate.
    """
    assert settings.quantile is not None
    return norm * jnp.exp(-settings.clip_rate * (share - settings.quantile))


def refuse_leaks(recipe: Recipe) -> None:
    """Raise ConfigError for a method that reveals more than the noisy sum of updates."""
    setup = recipe.setup
    leaves = what_leaves(recipe)
    begin = "config.privacy.name='gaussian' protects the sum of the clients' updates, but "
    refuse_alone(recipe, begin)
    if not any(stage.clients for stage in recipe.stages):
        raise ConfigError(
            f"{begin}no client of this method trains, so that nothing leaves it; leave one of them "
            "out"
        )
    # The global network has a plain mean of them (FedBN), or their initial values (FedRep's heads).
    kept = [*recipe.groups.private, *["normalization"] * recipe.groups.own_statistics]
    if kept:
        raise ConfigError(
            f"{begin}clients of this method keep layers to themselves ({', '.join(kept)}), which "
            "the global network would have without noise; use a method that shares all layers, or "
            "config.personalize.name=ditto for models of the clients' own"
        )
    if setup.federated_optimizer.num_groups > 1:
        raise ConfigError(
            f"{begin}this federated optimizer makes a model of every group, whose few clients the "
            "noise would not hide; use another config.federated.name, such as fedavg"
        )
    if leaves["weight"]:
        raise ConfigError(
            f"{begin}clients of this method have weights in the average that follow from their "
            "data; use a method without weights of its own, and config.federated.weighting=uniform"
        )
    if more := beside(recipe, _COVERED):
        instead = "another method or federated optimizer"
        if leaves["statistics"]:
            instead = "a network without batch norm (config.model.norm=gn or none), " + instead
        raise ConfigError(
            f"{begin}with this method also {', '.join(more)} would leave the clients, and nothing "
            f"hides a client there; use {instead}"
        )
    for one in (*recipe.uploads, *setup.uploads):
        if one.at_server is not None:
            raise ConfigError(
                f"{begin}upload transform {one.name!r} sees the sum before it has noise; leave it "
                "out"
            )
