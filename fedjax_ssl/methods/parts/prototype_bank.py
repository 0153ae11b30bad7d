"""Class prototypes that clients uploaded in the last rounds, and the random choice of helpers among
them.

Shapes: B stored rounds, p cohort slots, H helpers, K classes, d features.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl import objectives


class PrototypeSets(NamedTuple):
    """Class prototypes of several clients; a set without classes is an empty slot."""

    centers: Float[Array, "*sets K d"]
    present: Bool[Array, "*sets K"]


class PrototypeBank(NamedTuple):
    """A ring buffer of rounds, newest first."""

    sets: PrototypeSets  # [B, p, K, d]
    owner: Int[Array, "B p"]  # client id


def empty_bank(rounds: int, slots: int, num_classes: int, num_features: int) -> PrototypeBank:
    """Return a bank without any prototypes."""
    shape = (rounds, slots, num_classes)
    centers = jnp.zeros((*shape, num_features), jnp.result_type(float))
    return PrototypeBank(
        PrototypeSets(centers, jnp.zeros(shape, bool)), jnp.zeros(shape[:2], jnp.int32)
    )


def push(
    bank: PrototypeBank, uploads: PrototypeSets, owner: Int[Array, " p"], kept: Bool[Array, " p"]
) -> PrototypeBank:
    """Store the uploads of a round in place of the oldest round.

    A set with a value that is not finite is left out as a whole. If no set is left, the bank stays
    as it is.

    Args:
        bank: bank before the round.
        uploads: uploads of the round, [p, K, d].
        owner: client ids.
        kept: mask of clients that took part and were not dropped.
    """
    present = uploads.present & (kept & finite_sets(uploads))[:, None]
    centers = jnp.where(present[:, :, None], uploads.centers, 0.0).astype(bank.sets.centers.dtype)
    newest = PrototypeBank(PrototypeSets(centers, present), owner)
    moved = jax.tree.map(lambda new, old: jnp.concatenate([new[None], old[:-1]]), newest, bank)
    return jax.tree.map(lambda new, old: jnp.where(jnp.any(present), new, old), moved, bank)


def finite_sets(sets: PrototypeSets) -> Bool[Array, "*sets"]:
    """Return the mask of sets whose prototypes are all finite."""
    finite = jnp.all(jnp.isfinite(sets.centers), axis=-1)
    return jnp.all(finite | ~sets.present, axis=-1)


def newest_sets(bank: PrototypeBank, rounds: int) -> PrototypeSets:
    """Return the sets of the newest rounds, [rounds * p, K, d]; classes that a set lacks are filled
    in from the others.

    Args:
        bank: stored uploads.
        rounds: number of rounds.
    """
    held = jax.tree.map(lambda x: x[:rounds].reshape(-1, *x.shape[2:]), bank.sets)
    centers, known = objectives.fill_missing_prototypes(held.centers, held.present)
    filled = jnp.any(held.present, axis=1, keepdims=True) & known
    return PrototypeSets(jnp.where(filled[:, :, None], centers, 0.0), filled)


def choose_helpers(
    key: Key[Array, ""], bank: PrototypeBank, rounds: int, num_helpers: int
) -> PrototypeSets:
    """Draw helpers among the sets of the newest rounds, uniformly without replacement.

    Args:
        key: key of the draw, which also depends on client ids and the age of a set, but not on
            slots.
        bank: stored uploads.
        rounds: number of rounds whose sets are candidates.
        num_helpers: H, at most; all candidates if there are fewer.

    Returns:
        [min(H, rounds * p), K, d], empty slots included.
    """
    candidates = newest_sets(bank, rounds)
    if num_helpers >= candidates.present.shape[0]:
        return candidates
    ids = bank.owner[:rounds]
    age = jnp.broadcast_to(jnp.arange(rounds, dtype=jnp.int32)[:, None], ids.shape)
    keys = jax.vmap(lambda a, i: jax.random.fold_in(jax.random.fold_in(key, a), i))(
        age.reshape(-1), ids.reshape(-1)
    )
    # 24 bits, because float32 holds them exactly.
    priority = (jax.vmap(jax.random.bits)(keys) >> 8).astype(jnp.float32)
    counted = jnp.any(candidates.present, axis=1)
    _, chosen = jax.lax.top_k(jnp.where(counted, priority, -1.0), num_helpers)
    return jax.tree.map(lambda x: x[jnp.sort(chosen)], candidates)
