"""`features`: examples as an encoder saw them, with stored views in place of augmentation."""

import dataclasses
from typing import Annotated, Any

import numpy as np

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset, Names, StoredViews
from fedjax_ssl.data.reading.encoded import load_encoded
from fedjax_ssl.data.reading.own import BadData, Place, given_path
from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.data.sources.npz import Arrays, read_npz
from fedjax_ssl.data.views import ENCODE

INPUTS: Names = ("inputs", "test_inputs")


@dataset(
    "features",
    "features of an encoder: path= a folder of `fedjax-ssl features`, or an .npz file",
    terms="yours",
    kind="own",
)
def load_features(
    *, path: Place = None, strong_views: Annotated[int | None, Whole(0)] = None
) -> Dataset:
    """Load features of examples, and of views of them.

    A folder is what the command `features` has written; labels, clients and names are those of the
    dataset that it encoded. An `.npz` file has the arrays of the dataset `npz`, where `inputs` are
    floating point, [n, d], or [n, views, d]: the example as it is, weak views, strong views.
    `test_inputs` are [t, d], or of the same form.

    Args:
        path: the folder, or the file.
        strong_views: of an `.npz` file, how many of the views are strong, the last ones; by
            default half of them, rounded down.

    Returns:
        The dataset, with `views`.

    Raises:
        DatasetUnavailable: nothing is there, or the `.npz` cannot be read.
        ValueError: the features are not whole, or do not fit; says what was found.
    """
    place = given_path(
        "features", path, "a folder that `fedjax-ssl features` has written, or an .npz file", "any"
    )
    if place.is_dir():
        if strong_views is not None:
            raise BadData(
                place,
                f"strong_views is {strong_views}, but the folder says itself which views are "
                "strong; leave it out",
            )
        return load_encoded(place)
    taken: Arrays = {}

    def aside(arrays: Arrays) -> None:
        """Put one number in place of every example's features, which have an axis more."""
        for name in INPUTS:
            if name not in arrays:
                continue
            taken[name] = _features(name, arrays[name])
            arrays[name] = np.zeros((len(taken[name]), 1), np.float32)

    bare = read_npz(place, aside=aside)
    inputs = taken["inputs"]
    test = taken.get("test_inputs", inputs[:0])
    if test.shape[1:] not in (inputs.shape[1:], (1, inputs.shape[2])):
        raise BadData(
            place, f"test_inputs has shape {test.shape}, inputs {inputs.shape}; they must be alike"
        )
    others = inputs.shape[1] - 1
    strong = others // 2 if strong_views is None else strong_views
    if strong > others:
        raise BadData(
            place,
            f"strong_views is {strong}, but an example has {others} views beside itself; {ENCODE}",
        )
    made: dict[str, Any] = {"train": dataclasses.replace(bare.train, x=inputs)}
    if bare.test is not None:
        same = np.broadcast_to(test, (len(test), *inputs.shape[1:]))
        made["test"] = dataclasses.replace(bare.test, x=same)
    views = StoredViews(others - strong, strong)
    return dataclasses.replace(bare, name="features", **made, views=views)


def _features(name: str, values: np.ndarray) -> np.ndarray:
    """Take features as [n, views, d]."""
    if values.dtype.kind != "f" or values.ndim not in (2, 3) or 0 in values.shape:
        raise ValueError(
            f"{name} has shape {values.shape} and dtype {values.dtype}; features are floating "
            "point, [n, d] or [n, views, d]"
        )
    single = values.astype(np.float32)
    return single[:, None] if single.ndim == 2 else single
