"""Starting from weights that were trained with torchvision."""

import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PRNGKeyArray, PyTree

from fedjax_ssl.errors import counted
from fedjax_ssl.models.efficientnet import STAGES
from fedjax_ssl.models.model import Model

EXPORT = "np.savez(path, **{name: value.numpy() for name, value in model.state_dict().items()})"
# Counts of batches, which PyTorch needs only for a momentum that we do not have.
IGNORED = ".num_batches_tracked"

Place = tuple[str, ...]
Layers = Mapping[Place, str]  # a layer's place in our parameters and state -> its name in the state dict

# Our arrays of a layer -> PyTorch's.
NAMES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


def their_names(places: Iterable[Place], layers: Layers) -> dict[Place, str]:
    """Find the names in the state dict of our arrays; a place is the tree, the layer's place and the array."""
    return {place: f"{layers[place[1:-1]]}.{NAMES[place[-1]]}" for place in places if place[1:-1] in layers}


def their_shape(ours: tuple[int, ...]) -> tuple[int, ...]:
    """Turn the shape of an array into PyTorch's: of kernels HWIO, depthwise ones too, OIHW, and else the same."""
    return (ours[3], ours[2], *ours[:2]) if len(ours) == 4 else ours


def _conv_norm(ours: Place, theirs: str) -> dict[Place, str]:
    return {(*ours, "conv"): f"{theirs}.0", (*ours, "norm"): f"{theirs}.1"}


def efficientnet_b0_layers() -> dict[Place, str]:
    """List every layer of `EfficientNetB0` with its name in torchvision's `efficientnet_b0`; the head is the last."""
    layers = _conv_norm(("stem",), "features.0")
    for i, stage in enumerate(STAGES, 1):
        for block in range(1, stage.blocks + 1):
            ours, theirs = f"block{i}_{block}", f"features.{i}.{block - 1}.block"
            steps = (*(("expand",) if stage.expansion > 1 else ()), "depthwise", "excitation", "project")
            for position, step in enumerate(steps):
                if step == "excitation":
                    layers |= {
                        (ours, "squeeze"): f"{theirs}.{position}.fc1",
                        (ours, "excite"): f"{theirs}.{position}.fc2",
                    }
                else:
                    layers |= _conv_norm((ours, step), f"{theirs}.{position}")
    return {**layers, **_conv_norm(("last",), f"features.{len(STAGES) + 1}"), ("head",): "classifier.1"}


LAYERS: Mapping[str, Callable[[], Layers]] = {"efficientnet_b0": efficientnet_b0_layers}


def pretrained(model: Model, path: str | Path, layers: Layers) -> Model:
    """The same model, started from the arrays of a PyTorch state dict.

    The file is made where PyTorch is installed, from any model of that architecture:

        np.savez(path, **{name: value.numpy() for name, value in model.state_dict().items()})

    The last layer is the classifier. It is taken if it has as many classes as ours, otherwise (or if the file has
    none) ours starts at random, as the second head always does. The file is read here, once; the new `init` is a
    pure function of its key.

    Args:
        model: the network with random weights.
        path: the `.npz` file.
        layers: the names of the network's layers, the classifier last.

    Returns:
        A model with another `init` and the same `apply`.

    Raises:
        ValueError: the file cannot be read, or an array in it is missing, unknown, of another shape, not floating
            point, NaN or infinite; names the array.
    """
    path = Path(path).expanduser()
    arrays = {name: values for name, values in _read(path).items() if not name.endswith(IGNORED)}
    shapes = _flat(jax.eval_shape(model.init, jax.random.key(0)))
    names, classifier = their_names(shapes, layers), list(layers)[-1]
    # The classifier is left out where the file has none, or one of other classes.
    found = [arrays[name] for place, name in names.items() if place[1:-1] == classifier and name in arrays]
    (num_classes,) = shapes["params", *classifier, "bias"].shape
    with_classifier = found and all(len(values) == num_classes for values in found if values.ndim)
    wanted = {place: name for place, name in names.items() if with_classifier or place[1:-1] != classifier}
    missing, extra = sorted(set(wanted.values()) - set(arrays)), sorted(set(arrays) - set(names.values()))
    if missing or extra:
        raise ValueError(
            f"weights {path} are of another architecture: {_some(missing)} missing, {_some(extra)} left over. Make it "
            f"from a model of the same architecture with {EXPORT}"
        )
    loaded: dict[Place, np.ndarray] = {}
    for place, name in wanted.items():
        values = _checked(path, name, arrays, their_shape(shapes[place].shape))
        loaded[place] = values.transpose(2, 3, 1, 0) if values.ndim == 4 else values

    @jax.jit
    def draw(key: PRNGKeyArray) -> dict[Place, jax.Array]:
        return {place: values for place, values in _flat(model.init(key)).items() if place not in loaded}

    def init(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        # copies, because a caller may donate what it got to its next step
        stored = {place: jnp.array(values, jnp.result_type(float)) for place, values in loaded.items()}
        tree = unflatten_dict({**stored, **draw(key)})
        return tree["params"], tree.get("state", {})

    return model._replace(init=init)


def _flat(variables: tuple[PyTree, PyTree]) -> dict[Place, jax.Array]:
    params, state = variables
    return flatten_dict({"params": params, "state": state})


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return counted(len(names), "array") + (f" ({', '.join(names[:5])}{more})" if names else "")


def _checked(path: Path, name: str, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    values = arrays[name]
    if values.shape != shape:
        raise ValueError(
            f"weights {path}: array {name!r} has shape {values.shape}, this network needs {shape}; export a model "
            "with the same widths and input channels"
        )
    if not np.issubdtype(values.dtype, np.floating):
        raise ValueError(f"weights {path}: array {name!r} has dtype {values.dtype}; allowed is floating point")
    if not np.isfinite(values).all():
        raise ValueError(f"weights {path}: array {name!r} holds NaN or infinite values; export it again")
    return values


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise ValueError(
            f"weights {path} is not {'a file' if path.exists() else 'there'}; make it where PyTorch is installed "
            f"with {EXPORT}, or leave `weights` empty to start at random"
        )
    name = None
    # The file is opened here, because numpy leaves a broken one open.
    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one bare array")
            arrays = {}
            with archive:
                for name in archive.files:
                    values = archive[name]
                    if not isinstance(values, np.ndarray):
                        raise ValueError("it is no array; a `.pt` or `.pth` file cannot be read directly")
                    arrays[name] = values
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            where = "" if name is None else f" (array {name!r})"
            why = "it holds Python objects, or is of another kind" if "pickle" in str(error) else str(error)
            raise ValueError(
                f"weights {path}{where} is not a readable .npz file of plain arrays, or it is damaged: {why}. "
                f"Make it with {EXPORT}"
            ) from error
    return arrays
