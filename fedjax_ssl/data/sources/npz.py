"""`npz`: the user's own arrays."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from fedjax_ssl.checks import In, Whole
from fedjax_ssl.data.dataset import Dataset, Names, Split, check_finite
from fedjax_ssl.data.reading.columns import read_columns, read_proportions
from fedjax_ssl.data.reading.own import (
    EMBEDDED,
    TEST_ARRAYS,
    TRAIN_ARRAYS,
    VALIDATION_ARRAYS,
    BadData,
    Findings,
    Place,
    axes_of_images,
    cell_text,
    given_path,
    one_each,
    read_arrays,
)
from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.data.reading.table_reading import rounded_away
from fedjax_ssl.errors import counted
from fedjax_ssl.registry import Changes

if TYPE_CHECKING:  # takes long to import
    import pandas

Arrays = dict[str, np.ndarray]
NEEDED = ("inputs", "labels")
# fmt: off
OPTIONAL = (
    "client", "test_inputs", "test_labels", "test_client", "class_names", "coarse",
    "correspondence", "set", "group",
)
# fmt: on
# Name in a file -> name here, of inputs and labels: those of Keras and of MedMNIST are known.
NAMES = {
    name: f"{split}{what}"
    for split, known in (("", TRAIN_ARRAYS), ("val_", VALIDATION_ARRAYS), ("test_", TEST_ARRAYS))
    for pair in known.items()
    for name, what in zip(pair, NEEDED, strict=True)
}

# Prefix of an array's name -> the split of its examples, and its name in messages.
PARTS = {"": ("train", ""), "val_": ("val", "validation, "), "test_": ("test", "test, ")}
# Column -> array, and the kinds of its type.
ROLES = {
    "label": ("{}labels", "iu"),
    "client": ("{}client", "iuSU"),
    "set": ("{}set", "iu"),
    "group": ("{}group", "iuSU"),
}


@dataset(
    "npz",
    "your own arrays: path= an .npz file with `inputs`, `labels` and, if known, `client`",
    terms="yours",
    kind="own",
)
def load_npz(
    *,
    path: Place = None,
    num_classes: Annotated[int | None, Whole(2)] = None,
    input_max: Annotated[float | None, In("(0, inf)")] = None,
    proportions: Annotated[Place, Changes("place")] = None,
) -> Dataset:
    """Load an `.npz` file of arrays (no pickled objects).

    Read are `inputs`, `labels` and, where present, `client`, `test_inputs`, `test_labels`,
    `test_client`, `class_names`, `coarse`, `correspondence`, `set` and `group`; also Keras' names
    `x_train`, `y_train`, `x_test`, `y_test` and MedMNIST's `train_images`, `train_labels`,
    `val_...`, `test_...`; validation examples are trained on. Inputs are uint8 or floating point,
    [n, features], [n, H, W] (grey; a channel axis is added) or [n, H, W, C]. Labels [n] or [n, 1]
    are 0 to K - 1, -1 = no label, and so is every test label without `test_labels`. Clients are
    integers or strings in any numbering, shared between train and test. `coarse` holds labels 0 to
    J - 1 of the training examples in a second label space, -1 = none, and `correspondence` [J, K]
    the probabilities of these given each class, or `[C, J, K]` of each client, in the order of its
    name; `set` holds the set of each training example, numbered from 0 within its client, -1 = in
    none. `group` says in integers or strings which training examples belong to one patient or the
    like, "" and -1 = to none: they stay on one side of every split.

    Args:
        path: the file.
        num_classes: K. By default it follows from the labels, and then every class must occur.
        input_max: the stored value that maps to 1.0; by default 255 for uint8 and 1 for floating
            point.
        proportions: CSV file with the class shares of each client's sets; see
            `fedjax_ssl.data.reading.columns.read_proportions`.

    Returns:
        The dataset, named "npz".

    Raises:
        DatasetUnavailable: a file is missing or the `.npz` cannot be read.
        ValueError: arrays are missing or do not fit; the message names the array and what was
            found.
    """
    path = given_path(
        "npz", path, f"an .npz file with the arrays `inputs` and `labels`, or run on {EMBEDDED}"
    )
    return read_npz(path, num_classes, input_max, proportions)


def read_npz(
    path: Path,
    num_classes: int | None = None,
    input_max: float | None = None,
    proportions: Place = None,
    aside: Callable[[Arrays], None] = lambda arrays: None,
) -> Dataset:
    """Read an `.npz` file as `load_npz` does.

    Args:
        path: the file.
        num_classes: see `load_npz`.
        input_max: likewise.
        proportions: likewise.
        aside: function that replaces inputs of another kind by placeholders.

    Raises:
        DatasetUnavailable: as `load_npz`.
        BadData: likewise.
    """
    found, names = read_arrays(path, lambda name: name in NAMES or name in OPTIONAL)
    findings = Findings()
    try:
        arrays = _named(found, names)
        aside(arrays)
        inputs = {prefix: _inputs(arrays, f"{prefix}inputs") for prefix in PARTS}
        if inputs["val_"] is not None:
            inputs[""] = _joined(inputs[""], inputs.pop("val_"))
        x = inputs[""]
        test_x = inputs["test_"]
        findings.notes += _about_inputs(x)
        texts = _texts(arrays)
        if "client" in texts and "test_client" not in arrays:
            texts.loc[texts["split"] == "test", "client"] = texts["client"].iloc[0]  # unused
        classes = _class_names(arrays.get("class_names"), num_classes, texts["label"])
        columns = read_columns(texts, list(map(str, range(len(classes)))), findings, ())
        findings.stop(path)
        train = columns.rows(~columns.is_test)
        test = columns.rows(columns.is_test)
        coarse, matrix, coarse_names = _coarse(arrays, x)
        shares = None
        if proportions is not None:
            shares = read_proportions(
                proportions, classes, columns.client_names, train.client, train.set
            )
        names_of_train = train.names if "val_labels" in arrays else None
        tested_client = test.client if "test_client" in arrays else None
        return Dataset(
            name="npz",
            train=Split(x, train.y, train.client, coarse, train.set, names_of_train, train.group),
            test=None if test_x is None else Split(test_x, test.y, tested_client),
            class_names=classes,
            client_names=columns.client_names,
            input_max=input_max or (255.0 if x.dtype == np.uint8 else 1.0),
            coarse_names=coarse_names,
            correspondence=matrix,
            set_shares=shares,
            extra={"path": str(path), "notes": findings.notes},
        )
    except BadData:
        raise
    except ValueError as error:
        raise BadData(path, str(error), findings.notes) from error


def _named(found: Arrays, names: Names) -> Arrays:
    """Return the arrays by this source's names."""
    arrays = {NAMES.get(name, name): values for name, values in found.items()}
    there = ", ".join(f"`{name}`" for name in names) or "nothing"
    if len(arrays) < len(found):
        raise ValueError(
            f"some arrays are there under two names, such as `inputs` and `x_train`; found: {there}"
        )
    missing = [name for name in NEEDED if name not in arrays]
    missing += ["test_inputs"] * ("test_labels" in arrays and "test_inputs" not in arrays)
    if missing:
        raise ValueError(
            f"has no array {' and '.join(f'`{name}`' for name in missing)}; found: {there}. "
            "Needed are `inputs` and `labels` (or `x_train` and `y_train`, or `train_images` and "
            f"`train_labels`); optional are {', '.join(f'`{name}`' for name in OPTIONAL)}"
        )
    return arrays


def _joined(inputs: Any, more: Any) -> Any:
    """Put the inputs of validation examples after those of training examples."""
    if inputs.shape[1:] != more.shape[1:]:
        raise ValueError(
            f"validation inputs have shape {more.shape}, training inputs {inputs.shape}"
        )
    return np.concatenate([inputs, more])


def _texts(arrays: Arrays) -> "pandas.DataFrame":
    """Collect the texts of all examples in one table, as for a user's own table."""
    import pandas

    parts = []
    for prefix, (split, words) in PARTS.items():
        if (inputs := arrays.get(f"{prefix}inputs")) is None:
            continue
        part = pandas.DataFrame({"split": split}, index=range(len(inputs)))
        for role, (name, kinds) in ROLES.items():
            array = name.format(prefix)
            if (values := arrays.get(array)) is None:
                continue
            if values.dtype.kind not in kinds:
                needed = "whole numbers, -1 = none" + ", or strings" * (kinds != "iu")
                raise ValueError(f"{array} has dtype {values.dtype}; it must hold {needed}")
            part[role] = list(map(cell_text, one_each(array, values, len(inputs)).tolist()))
        parts.append(part.rename(f"{words}row {{}}".format))
    return pandas.concat(parts).fillna("")


def _about_inputs(x: np.ndarray) -> list[str]:
    """Find inputs that may not be as intended, a sentence each."""
    found = axes_of_images("inputs", x.shape)
    if x.ndim == 2 and len(lost := np.flatnonzero(rounded_away(x))):
        found.append(
            f"{counted(len(lost), 'feature')} (first number {lost[0]}): so far from 0 that "
            "single precision loses differences; subtract the mean before"
        )
    return found


def _inputs(arrays: Arrays, name: str) -> Any:
    """Read images or features; None if they are missing."""
    if (values := arrays.get(name)) is None:
        return None
    if values.dtype != np.uint8 and values.dtype.kind != "f":
        raise ValueError(
            f"{name} has dtype {values.dtype}; allowed are uint8 (images) and floating point "
            "(features)"
        )
    if values.ndim not in (2, 3, 4) or 0 in values.shape:
        allowed = "[n, features], [n, H, W] and [n, H, W, C]"
        volumes = "; of volumes give slices, or features" * (values.ndim == 5)
        raise ValueError(f"{name} has shape {values.shape}; allowed are {allowed}{volumes}")
    axes_of_images(name, values.shape)
    check_finite(name, values)
    largest = np.finfo(np.float32).max
    if values.dtype.itemsize > 4 and len(beyond := np.argwhere(np.abs(values) > largest)):
        raise ValueError(
            f"{name} has a value beyond {largest:.3g} in row {beyond[0, 0]}; single precision, in "
            "which a run computes, ends there: scale the features"
        )
    return values[..., None] if values.ndim == 3 else values


def _class_names(
    values: np.ndarray | None, num_classes: int | None, labels: "pandas.Series"
) -> Names:
    """Read the names of the classes, or use their numbers."""
    if values is not None:
        if values.ndim != 1 or values.dtype.kind not in "SUiu":
            found = f"shape {values.shape} and dtype {values.dtype}"
            raise ValueError(f"class_names has {found}; it must be [K], a name for each class")
        names = tuple(
            name.decode(errors="replace") if isinstance(name, bytes) else str(name)
            for name in values
        )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"class_names has {twice[0]!r} more than once")
        if num_classes not in (None, len(names)):
            raise ValueError(
                f"class_names has {len(names)} names, but num_classes is {num_classes}"
            )
        return names
    if num_classes is None:
        present = sorted(number for number in {*map(int, filter(None, labels))} if number >= 0)
        if len(present) < 2:
            raise ValueError(
                f"labels holds {counted(len(present), 'class', 'classes')} beside -1, which is no "
                "label, so the number of classes does not follow from it. Pass num_classes=, or "
                "add labels: at least two classes are needed, numbered from 0 on"
            )
        num_classes = present[-1] + 1
        if num_classes != len(present):
            absent = min({*range(len(present) + 1)}.difference(present))
            raise ValueError(
                f"labels run from {present[0]} to {present[-1]} but only {len(present)} of these "
                f"{num_classes} classes occur; class {absent} is the first without an example. "
                f"Renumber the classes 0 to {len(present) - 1}, or pass num_classes={num_classes} "
                "if the gaps are meant"
            )
    return tuple(map(str, range(num_classes)))


def _coarse(arrays: Arrays, inputs: np.ndarray) -> tuple[Any, Any, Names | None]:
    """Read labels in the coarse space, correspondence and names of the coarse classes."""
    labels = arrays.get("coarse")
    matrix = arrays.get("correspondence")
    if labels is None:
        if matrix is not None:
            raise ValueError("correspondence is there but coarse, the labels it is about, is not")
        return None, None, None
    labels = one_each("coarse", labels, len(inputs))
    if labels.dtype.kind not in "iu":
        raise ValueError(f"coarse has dtype {labels.dtype}; it must hold whole numbers, -1 = none")
    labels = labels.astype(np.int64)
    if matrix is None and labels.max() < 1:
        raise ValueError(
            f"coarse has no label above {labels.max()}, but at least two coarse classes are "
            "needed; add labels, or the array `correspondence`, whose rows say how many there are"
        )
    if matrix is not None and matrix.dtype.kind not in "iuf":
        raise ValueError(f"correspondence has dtype {matrix.dtype}; it must hold numbers")
    count = labels.max() + 1
    if matrix is not None:
        count = len(matrix[0] if matrix.ndim == 3 else matrix)
        matrix = matrix.astype(np.float64)
    return labels, matrix, tuple(map(str, range(count)))
