"""Augmentation inside the compiled step, before inputs are standardized: all by name."""

from collections.abc import Callable

from fedjax_ssl.data.images import strong, weak
from fedjax_ssl.data.images.weak import Augmentation
from fedjax_ssl.registry import Registry

AUGMENTATIONS: Registry[Augmentation] = Registry(
    "augmentation",
    {
        "none": weak.no_augmentation,
        "shift": weak.shift,
        "crop_flip": weak.crop_flip,
        "resize_crop": weak.resize_crop,
        "rotate": weak.rotate,
        "translate": weak.translate,
        "fixmatch": strong.fixmatch,
        "semifl": strong.semifl,
        "randaugment": strong.randaugment,
        "randaugment_fedmatch": strong.fedmatch,
        "randaugment_uda": strong.uda,
        "randaugment_fl2": strong.fl2,
        "randaugment_sage": strong.sage,
        "randaugment_fedrgd": strong.fedrgd,
    },
    given=("input_max", "input_mean"),
    makes=Callable,
    called_with=("key", "inputs"),
)
augmentation = AUGMENTATIONS.build  # (name, **options) -> Augmentation, which works under jit and vmap
