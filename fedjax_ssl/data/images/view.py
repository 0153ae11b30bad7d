"""What an augmentation is."""

from collections.abc import Callable

from jaxtyping import Array, Key, Shaped

# (key, images) -> images, as stored (uint8 or float), of the same shape and type; one key for the whole batch. What an
# image becomes depends on the key and on its place only, so that padding rows at the end of a batch change nothing.
Augmentation = Callable[[Key[Array, ""], Shaped[Array, "n H W C"]], Shaped[Array, "n H W C"]]


def check_images(images: Shaped[Array, "n H W C"]) -> None:
    """Raises ValueError for what has not the shape of images."""
    if images.ndim != 4:
        raise ValueError(f"augmentation needs images [n, H, W, C], got shape {images.shape}; use 'none' for features")
