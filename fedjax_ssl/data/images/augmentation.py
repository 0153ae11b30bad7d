"""Augmentation inside the compiled step, before inputs are standardized, by name or as a chain of
names.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import Array

from fedjax_ssl.data.images import strong, weak
from fedjax_ssl.data.images.weak import Augmentation
from fedjax_ssl.registry import Registry


class _Augmentations(Registry[Augmentation]):
    """Augmentations by name; several names with commas between are a chain, for example
    "rotate,flip".
    """

    def builder(self, name: str) -> Callable[..., Augmentation]:
        links = [super(_Augmentations, self).builder(one.strip()) for one in str(name).split(",")]
        return links[0] if len(links) == 1 else _chain(links)


def _chain(links: Sequence[Callable[..., Augmentation]]) -> Callable[..., Augmentation]:
    """Return the builder of a chain of augmentations. An option goes to every link that has it."""
    taken = [inspect.signature(link, eval_str=True).parameters for link in links]

    def build(**options: Any) -> Augmentation:
        steps = [
            link(**{name: value for name, value in options.items() if name in own})
            for link, own in zip(links, taken, strict=True)
        ]

        def augment(key: Array, images: Array) -> Array:
            for place, step in enumerate(steps):
                images = step(jax.random.fold_in(key, place), images)
            return images

        return augment

    united = {
        name: one.replace(kind=one.KEYWORD_ONLY)
        for own in reversed(taken)
        for name, one in own.items()
    }
    build.__signature__ = inspect.Signature(list(united.values()))  # type: ignore[attr-defined]
    return build


AUGMENTATIONS: Registry[Augmentation] = _Augmentations(
    "augmentation",
    {
        "none": weak.no_augmentation,
        "shift": weak.shift,
        "crop_flip": weak.crop_flip,
        "resize_crop": weak.resize_crop,
        "flip": weak.flip,
        "rotate": weak.rotate,
        "translate": weak.translate,
        "flamby": weak.flamby,
        "fixmatch": strong.fixmatch,
        "randaugment_fedmatch": strong.fedmatch,
        "randaugment_fl2": strong.fl2,
        "randaugment_sage": strong.sage,
        "randaugment_fedrgd": strong.fedrgd,
    },
    given=("input_max",),
    makes=Callable,
    called_with=("key", "inputs"),
)
# (name, **options) -> Augmentation, which works under jit and vmap
augmentation = AUGMENTATIONS.build
