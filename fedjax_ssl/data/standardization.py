"""Standardization: mean and deviation of a dataset's inputs, and the map that applies them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from fedjax_ssl.data.dataset import Dataset, distinct
from fedjax_ssl.data.federation.federated_data import client_number, natural_names
from fedjax_ssl.data.reading.table_reading import TableReading
from fedjax_ssl.errors import counted

STANDARDIZATIONS = ("auto", "dataset", "train", "client", "none")
BLOCK_VALUES = 1 << 22  # values converted to float64 at once
_WITH_VIEWS = 3  # axes of features with stored views


def standardized(
    dataset: Dataset,
    by: str = "auto",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    left_out: int | str | None = None,
) -> tuple[Dataset, str]:
    """Set the mean and deviation by which a dataset's inputs are standardized.

    Statistics of the training examples are over `dataset.train`. Every example counts once, with or
    without a label, for all clients except the one left out. Examples that a run draws for test or
    validation count too, because the statistics belong to the dataset and not to the split of one
    seed. The source's own test split never counts.

    Args:
        dataset: dataset from a source.
        by: "dataset": the statistics that come with it. "train": mean and population deviation of
            its training examples, per channel of images [n, H, W, C] and per feature of vectors [n,
            features], in float64; a constant channel or feature has the deviation 1. "auto":
            "dataset" if it has statistics, else "train". "client": mean and sample deviation of
            every client's own training examples, also for its test examples. "none": inputs are
            divided by `input_max` and that is all.
        mean: mean in place of the dataset's, per channel or feature or one for all, on the scale
            where input_max is 1.0.
        std: likewise.
        left_out: the natural client that is the test set, as `federate` takes it.

    Returns:
        The dataset, and a sentence for the log.

    Raises:
        ValueError: an unknown `by`, statistics that the dataset lacks, or given ones without
            effect.
    """
    if by not in STANDARDIZATIONS:
        raise ValueError(f"standardize is {by!r}; allowed: {', '.join(STANDARDIZATIONS)}")
    if mean is not None or std is not None:
        if by in ("train", "client", "none"):
            raise ValueError(
                f"mean or std is given, which standardize={by!r} does not use; leave one of them "
                "out"
            )
        dataset = _replaced(dataset, mean, std)
    if by == "client":
        return _by_client(dataset)
    known = dataset.mean is not None or dataset.std is not None
    if by == "dataset" and not known:
        raise ValueError(
            f"standardize is 'dataset', but dataset {dataset.name!r} has no mean and deviation of "
            "its own; use 'train' for those of its training examples, 'none', or give mean and "
            "std"
        )
    if by == "none" and known:
        dataset = dataclasses.replace(dataset, mean=None, std=None)
    if by == "train" or (by == "auto" and not known):
        rows, but = _counted(dataset, left_out)
        stored = dataset.train.x if dataset.views is None else dataset.train.x[:, 0]
        center, width = _statistics(stored, dataset.input_max, rows)
        width = np.where(width, width, 1.0)
        dataset = _replaced(dataset, center.tolist(), width.tolist())
        count = counted(len(dataset.train) if rows is None else len(rows), "example")
        whose = f"of the {count} of all clients{but}"
    else:
        own = f"that belong to dataset {dataset.name!r}"
        whose = own if mean is None and std is None else "as given"
    if (dataset.mean or (0.0,), dataset.std or (1.0,)) == ((0.0,), (1.0,)):
        return dataset, f"inputs are divided by {dataset.input_max:g} and not standardized"
    return dataset, f"inputs are standardized by {_in_words(dataset)} {whose}"


def for_prediction(
    dataset: Dataset, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> tuple[Dataset, str]:
    """Set the mean and deviation of inputs to predict, if these differ from training's.

    Args:
        dataset: dataset with the mean and deviation of training.
        mean: mean in place of training's.
        std: likewise.

    Returns:
        The dataset, and what to add to the sentence for the log.

    Raises:
        ValueError: another number of values than the inputs have channels or features.
    """
    if mean is None and std is None:
        return dataset, ""
    try:
        dataset = _replaced(dataset, mean, std)
    except ValueError as error:
        raise ValueError(f"of test_mean and test_std: {error}") from None
    return dataset, f"; where they are predicted, by {_in_words(dataset)}"


def _replaced(
    dataset: Dataset, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Dataset:
    """Put given statistics in place of the dataset's."""
    return dataclasses.replace(
        dataset,
        mean=dataset.mean if mean is None else tuple(mean),
        std=dataset.std if std is None else tuple(std),
    )


def _counted(
    dataset: Dataset, left_out: int | str | None
) -> tuple[Int[np.ndarray, " m"] | None, str]:
    """Return the rows that count in statistics (None: all), and the name of the client left out."""
    if left_out is None or dataset.train.client is None:
        return None, ""
    names = natural_names(dataset)
    number = client_number(names, left_out)
    # An unknown client is refused when the federation is made.
    if number is None or len(names) < 2:
        return None, ""
    rows = np.flatnonzero(dataset.train.client != distinct(dataset.train.client)[number])
    return rows, f" but {names[number]!r}"


def _statistics(
    inputs: Shaped[np.ndarray, "n *shape C"], input_max: float, chosen: Int[np.ndarray, " m"] | None
) -> tuple[Float[np.ndarray, " C"], Float[np.ndarray, " C"]]:
    """Compute mean and deviation over all axes but the last, in two passes over blocks, because
    inputs may be memory-mapped.
    """
    number = len(inputs) if chosen is None else len(chosen)
    axes = tuple(range(inputs.ndim - 1))
    count = number * (inputs[0].size // inputs.shape[-1])
    size = max(BLOCK_VALUES // max(inputs[0].size, 1), 1)
    parts = [slice(start, start + size) for start in range(0, number, size)]
    blocks = parts if chosen is None else [chosen[part] for part in parts]
    mean = sum(inputs[rows].sum(axes, np.float64) for rows in blocks) / count
    std = np.sqrt(sum(np.square(inputs[rows] - mean).sum(axes) for rows in blocks) / count)
    # Not by a deviation of 0: the mean of equal values may have a rounding error.
    lowest = np.min([inputs[rows].min(axes) for rows in blocks], axis=0)
    constant = lowest == np.max([inputs[rows].max(axes) for rows in blocks], axis=0)
    return mean / input_max, np.where(constant, 0.0, std / input_max)


def statistics_of(
    stored: Shaped[np.ndarray, "n *shape C"],
    input_max: float,
    rows: Int[np.ndarray, " m"] | None = None,
) -> tuple[dict[str, list[float]], Bool[np.ndarray, " C"]]:
    """Compute the statistics by which a client's inputs are standardized.

    Args:
        stored: inputs as stored in the dataset.
        input_max: the stored value that maps to 1.0.
        rows: rows of the client; None: all.

    Returns:
        "mean" and "std", the sample deviation, per channel or feature, 1 for a constant one; and
        the mask of those that vary.
    """
    mean, std = _statistics(stored, input_max, rows)
    count = (len(stored) if rows is None else len(rows)) * (stored[0].size // stored.shape[-1])
    sample = np.where(std, std * np.sqrt(count / max(count - 1, 1)), 1.0)
    return {"mean": mean.tolist(), "std": sample.tolist()}, std > 0


def _by_client(dataset: Dataset) -> tuple[Dataset, str]:
    """Standardize the inputs of every natural client by its own training examples, and keep the
    statistics.

    Features are stored standardized. Images are stored as if every client had the clients' mean
    brightness and contrast, so that augmentations find values from 0 to `input_max`.
    """
    train = dataset.train
    test = dataset.test
    lacks = ""
    whose = np.zeros(0)
    if train.client is None:
        lacks = "has no clients of its own"
    else:
        whose = distinct(train.client)
        if test is not None and (test.client is None or len(np.setdiff1d(test.client, whose))):
            lacks = "has test examples of no client that trains"
    if lacks:
        raise ValueError(
            f"standardize is 'client', but dataset {dataset.name!r} {lacks}; use "
            "standardize='train'"
        )
    if isinstance(dataset.reading, TableReading) and dataset.reading.missing == "median":
        raise ValueError(
            "standardize is 'client', but data.missing=median fills cells with the median of all "
            "clients, whose units may differ; give data.missing=drop, or fill them in by client: "
            f"{_filling(dataset.reading, test is not None)}"
        )
    numbers = range(dataset.input_shape[-1])
    columns = dataset.extra.get("features") or [f"feature {number}" for number in numbers]
    splits = list(dataset.splits().values())
    arrays = [np.zeros(split.x.shape, np.float32) for split in splits]
    statistics = {}
    notes = []
    for name, number in zip(natural_names(dataset), whose, strict=True):
        rows = np.flatnonzero(train.client == number)
        stored = train.x if dataset.views is None else train.x[:, 0]
        statistics[name], varies = statistics_of(stored, dataset.input_max, rows)
        if not varies.all():
            constant = ", ".join(columns[at] for at in np.flatnonzero(~varies)[:5])
            one = len(rows) * (stored[0].size // stored.shape[-1]) == 1
            why = "one example" if one else f"constant: {constant}"
            notes.append(f"{name!r} ({why})")
    centre = np.zeros(1)
    width = np.ones(1)
    if train.x.ndim == 4:
        centre = np.mean([own["mean"] for own in statistics.values()], axis=0)
        width = np.mean([own["std"] for own in statistics.values()], axis=0)
    for own_statistics, number in zip(statistics.values(), whose, strict=True):
        mean = np.asarray(own_statistics["mean"])
        std = np.asarray(own_statistics["std"])
        for array, split in zip(arrays, splits, strict=True):
            own = np.flatnonzero(split.client == number)
            scaled = (split.x[own] - mean * dataset.input_max) / std
            array[own] = scaled * width + centre * dataset.input_max
    pairs = zip(dataset.splits().items(), arrays, strict=True)
    made: Any = {name: dataclasses.replace(split, x=array) for (name, split), array in pairs}
    said = "inputs are standardized by mean and deviation of each client's own training examples"
    if notes:
        said += f"; where these do not vary, the deviation is 1: {', '.join(notes)}"
    made |= {"mean": tuple(centre.tolist()), "std": tuple(width.tolist())}
    extra = {**dataset.extra, "client_statistics": statistics}
    return dataclasses.replace(dataset, **made, extra=extra), said


def _filling(reading: TableReading, tested: bool) -> str:
    """Write the line of pandas that fills features with medians of each client's training rows."""
    own = "table[numbers]"
    if tested and "split" in reading.roles:
        test = f"table[{reading.roles['split']!r}].str.contains('test', case=False, na=False)"
        own += f".where(~{test})"
    return (
        f"numbers = {[one.name for one in reading.features if one.kind == 'number']}; "
        f"table[numbers] = table[numbers].fillna({own}"
        f".groupby(table[{reading.roles['client']!r}]).transform('median'))"
    )


def _in_words(dataset: Dataset) -> str:
    mean, std = (
        ", ".join(f"{value:.4g}" for value in values) if len(values) <= 3 else "of each feature"
        for values in (dataset.mean or (0.0,), dataset.std or (1.0,))
    )
    return f"mean {mean} and deviation {std}"


def normalizer(dataset: Dataset) -> Callable[[Shaped[Array, "*batch C"]], Float[Array, "*batch C"]]:
    """Make the map from stored inputs to the network's: (raw / input_max - mean) / std, in float32.

    Args:
        dataset: has `input_max`, `mean` and `std`; without a mean nothing is subtracted, without a
            deviation nothing is divided by.

    Returns:
        fn(raw [..., C], uint8 or float) -> float32 of the same shape; for inputs [n, views, C] with
        stored views, the examples themselves, [n, C].
    """
    center = np.asarray(dataset.mean or 0.0, np.float64)
    width = np.asarray(dataset.std or 1.0, np.float64)
    # One multiplication and one addition per value, with constants computed in double precision.
    scale = np.asarray(1.0 / (dataset.input_max * width), np.float32)
    offset = np.asarray(-center / width, np.float32)

    def normalize(raw: Shaped[Array, "*batch C"]) -> Float[Array, "*batch C"]:
        if dataset.views is not None and raw.ndim == _WITH_VIEWS:
            raw = raw[:, 0]
        return raw.astype(jnp.float32) * scale + offset

    return normalize
