"""Arrays of a user's own in `.npz` files: plain ones alone, since reading pickled objects can
run code.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedjax_ssl.data.reading.formats import DAMAGED
from fedjax_ssl.data.reading.problems import BadData, DatasetUnavailable

# Names of arrays of inputs, and of their labels, in the order in which they are predicted: new
# examples first.
TEST_ARRAYS = {"test_inputs": "test_labels", "x_test": "y_test", "test_images": "test_labels"}
CHANNELS = (1, 2, 3, 4)  # of images; another number may be another axis
VALIDATION_ARRAYS = {"val_images": "val_labels", "x_val": "y_val"}
TRAIN_ARRAYS = {
    "inputs": "labels",
    "images": "labels",
    "x_train": "y_train",
    "train_images": "train_labels",
}


def read_arrays(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read arrays of a file, and the names of all that it has.

    Args:
        path: the `.npz` file.
        wanted: tells by its name whether an array is read.

    Raises:
        DatasetUnavailable: the file is no such file, or is damaged.
        BadData: it holds Python objects, or two arrays of one name.
    """
    # The file is opened here, because numpy leaves a broken one open.
    with path.open("rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
        except DAMAGED as error:
            # NumPy takes what it does not know for pickled objects, and says how to load those.
            why = "it is of another kind" if "pickle" in str(error) else str(error)
            raise DatasetUnavailable(
                f"{path} is not a readable .npz file, or it is cut short: {why}. Save one with "
                "np.savez(path, inputs=..., labels=...)"
            ) from error
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise DatasetUnavailable(
                f"{path} holds one bare array; save both with np.savez(path, inputs=..., "
                "labels=...)"
            )
        with loaded:
            names = loaded.files
            if doubled := sorted({name for name in names if names.count(name) > 1}):
                raise BadData(
                    path, f"holds `{doubled[0]}` more than once; save it again with np.savez"
                )
            return {name: _array(path, loaded, name) for name in names if wanted(name)}, tuple(
                names
            )


def _array(path: Path, loaded: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    try:
        values = loaded[name]
    except DAMAGED as error:
        if "pickle" in str(error) or "Object" in str(error):  # NumPy's words about Python objects
            raise BadData(
                path,
                f"array {name!r} holds Python objects, which are refused because they can run "
                "code; save it as an array of numbers, or of strings of one length (dtype=str)",
            ) from error
        raise DatasetUnavailable(f"array {name!r} of {path} is damaged: {error}") from error
    if not isinstance(values, np.ndarray):
        raise DatasetUnavailable(
            f"{name!r} in {path} is no array; save arrays with np.savez(path, ...)"
        )
    return values


def one_each(name: str, values: np.ndarray, length: int) -> np.ndarray:
    """Take one value per example, [n] or [n, 1] as Keras and MedMNIST have it; refuse other
    shapes.
    """
    if values.shape == (length, 1):
        return values[:, 0]
    if values.ndim == 2 and len(values) == length and np.isin(values, (0, 1)).all():
        how = f"several labels per example: choose one column, such as {name}[:, 0]"
        if (values.sum(axis=1) == 1).all():
            how = f"one-hot labels: give {name}.argmax(axis=1)"
        raise ValueError(f"{name} has shape {values.shape}, {how}; an example has one label here")
    if values.shape != (length,):
        raise ValueError(f"{name} has shape {values.shape}; expected ({length},), one per example")
    return values


def axes_of_images(name: str, shape: tuple[int, ...]) -> list[str]:
    """Say in a sentence that the last of the axes [n, H, W, C] may be no channels; nothing where
    it is likely.

    Raises:
        ValueError: channels stand in front.
    """
    if len(shape) != 4 or shape[3] in CHANNELS:
        return []
    # Images are mostly square, and have fewer channels than pixels a side.
    in_front = shape[1] in CHANNELS or shape[1] < shape[2] == shape[3]
    if in_front:
        raise ValueError(
            f"{name} has shape {shape}, which looks like [n, C, H, W]; transpose it to "
            f"[n, H, W, C]: np.moveaxis({name}, 1, -1); of volumes give slices [n, H, W]"
        )
    return [
        f"{name} has shape {shape}, whose last axis is taken as {shape[3]} channels; give slices "
        "[n, H, W] of volumes, and move channels that stand elsewhere to the end "
        f"(np.moveaxis({name}, 1, -1))"
    ]
