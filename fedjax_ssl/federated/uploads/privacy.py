"""Client-level differential privacy: what one client changes in a round's sum is bounded, and the
sum gets noise. What that costs is counted in `fedjax_ssl.runs.account`.

References:
    McMahan, Ramage, Talwar and Zhang, Learning differentially private recurrent language models,
    ICLR 2018: flat clipping, fixed denominator. Andrew, Thakkar, McMahan and Ramaswamy,
    Differentially private learning with adaptive clipping, NeurIPS 2021: the norm follows a
    quantile of the clients' norms.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from fedjax_ssl.checks import In, Whole, checked
from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated.contract import ClientResult, RoundContext
from fedjax_ssl.federated.messages import Sums, Upload
from fedjax_ssl.federated.optimizers import Grouped
from fedjax_ssl.federated.uploads.transform import UploadTransform, uncovered
from fedjax_ssl.keys import named_key
from fedjax_ssl.registry import Registry

if TYPE_CHECKING:
    from fedjax_ssl.federated.private_steps import DPSGD
    from fedjax_ssl.federated.recipe import Recipe
    from fedjax_ssl.federated.setup import Setup

PyTree = Any
ACCOUNTANTS = ("pld", "rdp")
_COVERS = frozenset(("update", "means", "weight"))
_WITHIN = "within_clip"
# Deviations of the number of drawn clients for which there are slots beyond its mean.
_DEVIATIONS = 5


class Sampled(NamedTuple):
    """How cohorts are drawn: each client with one probability, into a fixed number of slots."""

    clients: int  # of the federation, N
    expected: int  # clients of a round on average, n: the fixed denominator
    slots: int  # at most so many take part

    @property
    def probability(self) -> float:
        """Probability n/N that a client is drawn."""
        return self.expected / self.clients


@checked
@dataclasses.dataclass(frozen=True)
class Gaussian:
    """The sum of clipped updates gets Gaussian noise at the server (McMahan et al. 2018).

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
        means_clip: largest norm of all that a client's terms send for a mean (ProtoFSSL's
            prototypes with method.helpers=mean), where a method does so.
        means_share: their share of the account; the rest is the updates'.
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
    means_clip: Annotated[float | Array, In("(0, inf)")] = 1.0
    means_share: Annotated[float | Array, In("(0, 1)")] = 0.5

    def sampled(self, clients: int, expected: int) -> Sampled:
        """Return how cohorts of a federation are drawn.

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


def no_privacy() -> None:
    """Hide nothing: whoever sees the model may learn what a client gave."""


PRIVACY: "Registry[Gaussian | DPSGD | None]" = Registry(
    "privacy",
    {
        "none": no_privacy,
        "gaussian": Gaussian,
        "dp_sgd": "fedjax_ssl.federated.private_steps:DPSGD",
    },
)


class Clip(NamedTuple):
    """State of the transform at the server."""

    norm: Float[Array, ""]  # S, largest norm of an update


def private_sum(settings: Gaussian, noise: float | Array, expected: int) -> UploadTransform:
    """Return the transform that clips whole updates at clients and adds noise to their sum.

    With n the expected cohort, S the clip norm and z the noise, the model moves by
    (sum_k Delta_k min(1, S/|Delta_k|) + N(0, z^2 S^2)) / n: the denominator stays whoever came, and
    an empty cohort adds noise, too. Noise follows from the key of the run.

    An adaptive norm costs nothing more: with sigma_b on the count of updates shorter than S, the
    sum gets (z^-2 - (2 sigma_b)^-2)^(-1/2), and both together cost what one sum with z costs. In
    the same way a method whose terms send means has two sums: with their share s, that of the
    updates gets z (1-s)^(-1/2) and theirs z s^(-1/2), each in units of its own clip norm.

    Args:
        settings: of the mechanism.
        noise: z; may be traced.
        expected: n.

    Example:
        >>> from fedjax_ssl.federated.uploads import Gaussian, private_sum
        >>> from fedjax_ssl.testing import toy
        >>> data = toy.federation()
        >>> private = private_sum(Gaussian(clip=0.5), noise=1.0, expected=data.num_clients)
        >>> setup = toy.setup(data)._replace(uploads=(private,))
        >>> recipe = fs.methods.recipe("fedavg", setup)
        >>> _, rows = fs.train(recipe, data, rounds=2, key=jax.random.key(0))
        >>> len(rows)
        2
    """
    adaptive = settings.quantile is not None
    of_count = settings.deviation_of_count(expected)
    of_sum = noise
    if adaptive:
        of_sum = noise_beside_a_count(noise, of_count)

    def at_client(
        key: Key[Array, ""], upload: Upload, trained: ClientResult, state: Clip
    ) -> Upload:
        update, norm = clipped(upload.update, state.norm)
        if jax.tree.leaves(upload.averages):
            means, _ = clipped(upload.averages, settings.means_clip)
            upload = upload._replace(averages=means)
        tallies = {_WITHIN: jnp.where(norm <= state.norm, 0.5, -0.5)} if adaptive else {}
        return upload._replace(update=update, weight=jnp.ones_like(upload.weight), tallies=tallies)

    def at_server(
        key: Key[Array, ""], summed: Sums, context: RoundContext, state: Clip
    ) -> tuple[Sums, Clip]:
        of_update, key_of_count = jax.random.split(key)
        of_change = of_sum
        if jax.tree.leaves(summed.averages):
            of_change, of_means = noise_of_two(of_sum, settings.means_share)
            key_of_means = named_key(key, "means")
            means = with_noise(key_of_means, summed.averages, of_means * settings.means_clip)
            summed = summed._replace(averages=means)
        change = with_noise(of_update, summed.update.change, of_change * state.norm)
        weight = jnp.full_like(summed.weight, expected)
        weights = dict.fromkeys(summed.update.weight, weight)
        after = summed._replace(
            update=summed.update._replace(change=change, weight=weights), weight=weight
        )
        if not adaptive:
            return after, state
        count = summed.tallies[_WITHIN] + of_count * jax.random.normal(key_of_count)
        return after, Clip(moved(state.norm, 0.5 + count / expected, settings))

    return UploadTransform(
        "gaussian",
        init=lambda params: Clip(jnp.asarray(settings.clip, jnp.result_type(float))),
        at_client=at_client,
        at_server=at_server,
        covers=_COVERS,
        tallies=(_WITHIN,) if adaptive else (),
        check=refuse_leaks,
    )


def clipped(update: Grouped, largest: float | Float[Array, ""]) -> tuple[Grouped, Float[Array, ""]]:
    """Shorten an update to a norm over all of it: (update, its norm before).

    One whose norm is not finite becomes 0.

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
    """Return a sum with Gaussian noise on every number of it."""
    leaves, structure = jax.tree.flatten(total)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + deviation * jax.random.normal(one, leaf.shape, leaf.dtype)
        for one, leaf in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)


def noise_beside_a_count(noise: float | Array, of_count: float) -> Any:
    """Return the noise z_Delta of the sum that costs, together with the count's, what z costs."""
    return (noise**-2.0 - (2.0 * of_count) ** -2.0) ** -0.5


def noise_of_two(noise: Any, share: float | Array) -> tuple[Any, Any]:
    """Return the noise of two sums, the second with this share, that cost together what z costs.

    Example:
        >>> of_update, of_means = noise_of_two(2.0, 0.2)
        >>> round((of_update**-2 + of_means**-2) ** -0.5, 6)
        2.0
    """
    return noise * (1 - share) ** -0.5, noise * share**-0.5


def moved(norm: Float[Array, ""], share: Float[Array, ""], settings: Gaussian) -> Float[Array, ""]:
    """Return the next clip norm: longer where fewer updates are shorter than wanted.

    Args:
        norm: S.
        share: of the updates that are at most so long; noisy, so that it may be outside [0, 1].
        settings: with the quantile and the rate.
    """
    assert settings.quantile is not None
    return norm * jnp.exp(-settings.clip_rate * (share - settings.quantile))


def refuse_alone(setup: "Setup", begin: str) -> None:
    """Raise ValueError where there is nothing to protect, as clients send nothing.

    Args:
        setup: of the run.
        begin: of the sentence, what protects what.
    """
    if setup.federated_optimizer.alone:
        raise ConfigError(
            f"{begin}with config.federated.name='local' nothing leaves a client; leave one of them "
            "out"
        )


def refuse_leaks(recipe: "Recipe", leaves: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError for a method of which more becomes known than the noisy sum of updates.

    Args:
        recipe: of the method.
        leaves: what leaves its clients, as `check_covers` takes it.
    """
    setup = recipe.setup
    begin = "config.privacy.name='gaussian' protects the sum of the clients' updates, but "
    refuse_alone(setup, begin)
    if not any(stage.clients for stage in recipe.stages):
        raise ConfigError(
            f"{begin}no client of this method trains, so that nothing leaves it; leave one of them "
            "out"
        )
    # The global network has them as a plain mean (FedBN), or as the run began (FedRep's heads).
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
    more = [name for names in uncovered(leaves, _COVERS).values() for name in names]
    if more:
        instead = "another method or federated optimizer"
        if leaves["terms"] and recipe.in_sum:
            instead = f"{recipe.in_sum}, or {instead}"
        if leaves["statistics"]:
            instead = "a network without batch norm (config.model.norm=gn or none), " + instead
        raise ConfigError(
            f"{begin}with this method also {', '.join(more)} would leave the clients, and nothing "
            f"hides a client there; use {instead}"
        )
    for one in (*recipe.uploads, *setup.uploads):
        if one.at_server is not None and one.check is not refuse_leaks:
            raise ConfigError(
                f"{begin}upload transform {one.name!r} sees the sum before it has noise; leave it "
                "out"
            )
