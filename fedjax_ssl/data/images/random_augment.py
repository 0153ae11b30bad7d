"""Random operations inside the compiled step: apply a policy to a batch.

The batch is cut into groups, place p belonging to group p mod `groups`. A group draws its
operations, an image its own strengths, signs, cutouts and whether an operation is applied at all.
The draws of an image depend on the key and its place only, so padding rows at the end change
nothing.

Groups are for speed. On a CPU they are computed one after another, and only the drawn operation of
each, also under `vmap` over clients or seeds. On accelerators all groups are computed at once with
all operations of a policy, and each group keeps its own. Both give the same images.

Source: RandAugment (Cubuk et al., NeurIPS 2020).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float, Int, Shaped

from fedjax_ssl.backend import backend
from fedjax_ssl.data.images import operations
from fedjax_ssl.data.images.operations import LARGEST, Images, Stored
from fedjax_ssl.data.images.policies import ENHANCERS, MOVEMENTS, Choice, Fill, Policy
from fedjax_ssl.keys import PRNGKey, named_key

GROUPS = 16

_PLAIN = ("identity", "autocontrast", "equalize")
_GRADED = (*ENHANCERS, "posterize", "solarize")
OPERATIONS = (*_PLAIN, *_GRADED, *MOVEMENTS, "cutout")

# (images, entry of the strengths [n], spots of cutouts [n, 2]) -> images
Branch = Callable[[Images, Int[Array, " n"], Float[Array, "n 2"]], Images]


class Draws(NamedTuple):
    """Random draws of a batch, one row per operation."""

    operation: Int[Array, "N G"]  # per group
    entry: Int[Array, "N n"]  # entry of the operation's strengths
    applied: Bool[Array, "N n"]
    spot: Float[Array, "N n 2"]  # spot of a cutout, as shares of height and width


def random_augment(
    key: PRNGKey,
    images: Stored,
    policy: Policy,
    groups: int = GROUPS,
    input_max: float = 255.0,
    in_turn: bool | None = None,
) -> Stored:
    """Apply the random operations of a policy to every image.

    Args:
        key: typed PRNG key.
        images: as stored, integer or floating; grey or colour. Floating ones are rounded to 256
            levels.
        policy: policy of the draws.
        groups: number of parts of the batch with separate draws of operations.
        input_max: largest stored value.
        in_turn: one group after another, or all operations for all groups at once. None: in turn on
            CPUs.

    Returns:
        Images of the same shape and dtype, with values in [0, input_max].
    """
    size, height, width, channels = images.shape
    if size == 0:
        return images
    groups = min(groups, size)
    draws = draw(key, policy, size, groups)
    rows = -(-size // groups)
    steps = [branch(choice, height, width, channels) for choice in policy.choices]
    last_cutout = None if policy.cutout is None else branch(policy.cutout, height, width, channels)

    def one_group(group: tuple[Array, Draws, Array, Array]) -> Shaped[Array, "rows H W C"]:
        stored, drawn, entry, spot = group
        planes = _to_levels(jnp.moveaxis(stored, -1, 1), input_max)

        def one_operation(planes: Images, drawn: Draws) -> tuple[Images, None]:
            changed = jax.lax.switch(drawn.operation, steps, planes, drawn.entry, drawn.spot)
            return jnp.where(drawn.applied[:, None, None, None], changed, planes), None

        planes, _ = jax.lax.scan(one_operation, planes, drawn)
        if last_cutout is not None:
            planes = last_cutout(planes, entry, spot)
        return jnp.moveaxis(_from_levels(planes, input_max, stored.dtype), 1, -1)

    def split(values: Shaped[Array, "n ..."]) -> Shaped[Array, "G rows ..."]:
        padded = jnp.concatenate([values, values[: rows * groups - size]])
        return jnp.swapaxes(padded.reshape(rows, groups, *values.shape[1:]), 0, 1)

    def split_draws(values: Shaped[Array, "N n ..."]) -> Shaped[Array, "G N rows ..."]:
        return jnp.swapaxes(jax.vmap(split)(values), 0, 1)

    one = Draws(draws.operation.T, *map(split_draws, draws[1:]))
    entry, spot = _final_draws(key, policy, size)
    apart = (split(images), one, split(entry), split(spot))
    if backend() == "cpu" if in_turn is None else in_turn:
        results = sequential_vmap(functools.partial(jax.lax.map, one_group))(apart)
    else:
        results = jax.vmap(one_group)(apart)
    return jnp.swapaxes(results, 0, 1).reshape(rows * groups, height, width, channels)[:size]


def draw(key: PRNGKey, policy: Policy, size: int, groups: int) -> Draws:
    """Draw for a batch of `size` images in `groups` groups."""
    options = jnp.asarray(policy.levels, jnp.uint32)
    chosen = jax.random.bits(named_key(key, "levels"), (size,)) % jnp.uint32(len(policy.levels))
    levels = options[chosen]

    def one(number: Int[Array, ""]) -> Draws:
        own = jax.random.fold_in(key, number)
        number_drawn = jax.random.bits(named_key(own, "operation"), (groups,))
        operation = number_drawn % jnp.uint32(len(policy.choices))
        level = jax.random.bits(named_key(own, "level"), (size,)) % levels
        negative = ~jax.random.bernoulli(named_key(own, "sign"), shape=(size,))
        applied = jax.random.uniform(named_key(own, "chance"), (size,), jnp.float32) < policy.chance
        # Entries of signed strengths come in pairs.
        entry = 2 * level.astype(jnp.int32) + negative.astype(jnp.int32)
        spots = _spots(named_key(own, "cutout"), size)
        return Draws(operation.astype(jnp.int32), entry, applied, spots)

    return jax.vmap(one)(jnp.arange(policy.number, dtype=jnp.uint32))


def _final_draws(
    key: PRNGKey, policy: Policy, size: int
) -> tuple[Int[Array, " n"], Float[Array, "n 2"]]:
    """Return entry and spot of the cutout at the end."""
    count = 1 if policy.cutout is None else len(policy.cutout.amounts)
    level = jax.random.bits(named_key(key, "side"), (size,)) % jnp.uint32(count)
    return 2 * level.astype(jnp.int32), _spots(named_key(key, "cutout"), size)


def _spots(key: PRNGKey, size: int) -> Float[Array, "n 2"]:
    drawn = [jax.random.uniform(named_key(key, axis), (size,), jnp.float32) for axis in ("y", "x")]
    return jnp.stack(drawn, axis=-1)


def branch(choice: Choice, height: int, width: int, channels: int) -> Branch:
    """Make a branch of one operation with its strengths: entry 2 k is level k, and entry 2 k + 1
    has the other sign.
    """
    name = choice.operation
    if name in _PLAIN:
        return lambda images, entry, spot: getattr(operations, name)(images)
    strengths = _strengths(choice, height, width)
    fill = _fill(choice.fill, channels)

    def apply(images: Images, entry: Int[Array, " n"], spot: Float[Array, "n 2"]) -> Images:
        strength = jnp.asarray(strengths)[entry % len(strengths)]
        if name in _GRADED:
            return getattr(operations, name)(images, strength)
        if name == "cutout":
            return operations.cutout(images, strength, spot, fill, choice.full)
        if choice.smooth:
            return operations.shear_smoothly(images, strength, fill, _axis(name))
        return operations.move(images, strength, fill)

    return apply


def _strengths(choice: Choice, height: int, width: int) -> Shaped[np.ndarray, "L ..."]:
    """Return the arguments of an operation, for both signs of every level."""
    name = choice.operation
    amounts = np.repeat(np.asarray(choice.amounts, np.float64), 2)
    if choice.signed:
        amounts[1::2] *= -1.0
        amounts = amounts + 1.0 if name in ENHANCERS else amounts
    sides = {"translate_x": width, "translate_y": height, "cutout": min(height, width)}
    if name in sides and not choice.pixels:
        amounts *= sides[name]
    if name == "posterize":
        return (2.0 ** (8.0 - amounts)).astype(np.float32)
    if name == "solarize":
        return np.ceil(amounts).astype(np.float32)
    if name == "rotate":
        return operations.rotation(amounts, height, width)
    if choice.smooth:
        return operations.shear_offsets(amounts, height if name == "shear_x" else width)
    if name.startswith("shear"):
        return operations.shear(amounts, _axis(name))
    if name.startswith("translate"):
        return operations.translation(amounts, _axis(name))
    return amounts.astype(np.float32)


def _axis(name: str) -> int:
    return 1 if name.endswith("_x") else 0


def _fill(fill: Fill, channels: int) -> Float[np.ndarray, " C"]:
    """Return the value per channel; images without colour get the luminance of a colour."""
    values = np.atleast_1d(np.asarray(fill, np.float32))
    if len(values) == 3 and channels != 3:
        values = np.round(values[None] @ np.asarray([0.299, 0.587, 0.114], np.float32))
    return np.broadcast_to(values, (channels,))


def _to_levels(stored: Shaped[Array, "n C H W"], input_max: float) -> Images:
    """Return stored values on the scale 0..255, whole; values outside are cut."""
    values = stored.astype(jnp.float32)
    if input_max == LARGEST and not jnp.issubdtype(stored.dtype, jnp.floating):
        return values
    return jnp.clip(jnp.round(values * (LARGEST / input_max)), 0.0, LARGEST)


def _from_levels(planes: Images, input_max: float, dtype: jnp.dtype) -> Shaped[Array, "n C H W"]:
    values = planes if input_max == LARGEST else planes * (input_max / LARGEST)
    if not jnp.issubdtype(dtype, jnp.floating):
        values = jnp.round(values)
    return jnp.clip(values, 0.0, input_max).astype(dtype)
