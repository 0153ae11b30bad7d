"""Starting from weights that were trained before: with torchvision or timm, or in another run."""

import importlib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PRNGKeyArray, PyTree

from fedjax_ssl.errors import counted, how_to_install
from fedjax_ssl.models.efficientnet import STAGES
from fedjax_ssl.models.model import Model
from fedjax_ssl.models.residual import RESNET18_BLOCKS

# Counts of batches, which PyTorch needs only for a momentum that we do not have.
IGNORED = ".num_batches_tracked"

Place = tuple[str, ...]
# a layer's place in our parameters and state, or that of an array without a layer -> its name in
# the state dict
Layers = Mapping[Place, str]

EXPORT = "np.savez(path, **{name: value.numpy() for name, value in model.state_dict().items()})"
# Mean and deviation of torchvision's training images, where 1 is the largest stored value.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Our arrays of a layer -> PyTorch's.
NAMES = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


def their_names(places: Iterable[Place], layers: Layers) -> dict[Place, str]:
    """Find the names in the state dict of our arrays; a place is the tree, the layer's place and
    the array.
    """
    of_layers = {
        place: f"{layers[place[1:-1]]}.{NAMES[place[-1]]}"
        for place in places
        if place[1:-1] in layers
    }
    return of_layers | {place: layers[place[1:]] for place in places if place[1:] in layers}


def their_shape(ours: tuple[int, ...]) -> tuple[int, ...]:
    """Turn an array's shape into PyTorch's: kernels from HWIO (depthwise ones too) to OIHW, others
    unchanged.
    """
    return (ours[3], ours[2], *ours[:2]) if len(ours) == 4 else ours


def _conv_norm(ours: Place, theirs: str) -> dict[Place, str]:
    return {(*ours, "conv"): f"{theirs}.0", (*ours, "norm"): f"{theirs}.1"}


def efficientnet_b0_layers() -> dict[Place, str]:
    """List every layer of `EfficientNetB0` with its name in torchvision's `efficientnet_b0`; the
    head is the last.
    """
    layers = _conv_norm(("stem",), "features.0")
    for i, stage in enumerate(STAGES, 1):
        for block in range(1, stage.blocks + 1):
            ours = f"block{i}_{block}"
            theirs = f"features.{i}.{block - 1}.block"
            steps = (
                *(("expand",) if stage.expansion > 1 else ()),
                "depthwise",
                "excitation",
                "project",
            )
            for position, step in enumerate(steps):
                if step == "excitation":
                    layers |= {
                        (ours, "squeeze"): f"{theirs}.{position}.fc1",
                        (ours, "excite"): f"{theirs}.{position}.fc2",
                    }
                else:
                    layers |= _conv_norm((ours, step), f"{theirs}.{position}")
    return {
        **layers,
        **_conv_norm(("last",), f"features.{len(STAGES) + 1}"),
        ("head",): "classifier.1",
    }


def timm_efficientnet_layers() -> dict[Place, str]:
    """List every layer of `EfficientNetB0` with its name in timm's state dicts; the head is the
    last.
    """
    layers: dict[Place, str] = {("stem", "conv"): "conv_stem", ("stem", "norm"): "bn1"}
    for i, stage in enumerate(STAGES, 1):
        for block in range(1, stage.blocks + 1):
            ours = f"block{i}_{block}"
            theirs = f"blocks.{i - 1}.{block - 1}"
            steps = {"expand": "conv_pw", "depthwise": "conv_dw", "project": "conv_pwl"}
            if stage.expansion == 1:
                steps = {"depthwise": "conv_dw", "project": "conv_pw"}
            for number, (step, conv) in enumerate(steps.items(), 1):
                layers |= {
                    (ours, step, "conv"): f"{theirs}.{conv}",
                    (ours, step, "norm"): f"{theirs}.bn{number}",
                }
            layers |= {
                (ours, "squeeze"): f"{theirs}.se.conv_reduce",
                (ours, "excite"): f"{theirs}.se.conv_expand",
            }
    return {
        **layers,
        ("last", "conv"): "conv_head",
        ("last", "norm"): "bn2",
        ("head",): "classifier",
    }


def resnet18_layers() -> dict[Place, str]:
    """List every layer of `ResNet18` with its name in torchvision's and timm's state dicts; the
    head is the last.
    """
    layers: dict[Place, str] = {("stem", "conv"): "conv1", ("stem", "norm"): "bn1"}
    for stage, count in enumerate(RESNET18_BLOCKS, 1):
        for block in range(1, count + 1):
            theirs = f"layer{stage}.{block - 1}"
            steps = {f"layer{i}": (f"conv{i}", f"bn{i}") for i in (1, 2)}
            if block == 1 and stage > 1:
                steps["shortcut"] = "downsample.0", "downsample.1"
            for step, (conv, norm) in steps.items():
                layers |= {
                    (f"block{stage}_{block}", step, "conv"): f"{theirs}.{conv}",
                    (f"block{stage}_{block}", step, "norm"): f"{theirs}.{norm}",
                }
    return {**layers, ("head",): "fc"}


LAYERS: Mapping[str, Callable[[], Layers]] = {
    "efficientnet_b0": efficientnet_b0_layers,
    "resnet18": resnet18_layers,
}
# Other names of the same layers.
TIMM_LAYERS: Mapping[str, Callable[[], Layers]] = {
    "efficientnet_b0": timm_efficientnet_layers,
}


def layers_of(network: str) -> tuple[Layers, ...]:
    """List the names that a network's layers may have in a file; none of a network without
    published weights.
    """
    return tuple(table[network]() for table in (LAYERS, TIMM_LAYERS) if network in table)


def pretrained(model: Model, path: str | Path, *named: Layers) -> Model:
    """Return the same model, started from the arrays of a PyTorch state dict.

    The file is made where PyTorch is installed, from any model of that architecture:

        np.savez(path, **{name: value.numpy() for name, value in model.state_dict().items()})

    The last layer is the classifier. It is taken if it has as many classes as ours, otherwise (or
    if the file has none) ours starts at random, as the second head always does. The file is read
    here, once; the new `init` is a pure function of its key.

    Args:
        model: the network with random weights.
        path: the file, `.npz`, `.safetensors`, or `.pth` where PyTorch is installed.
        *named: the names of the network's layers, the classifier last; of several namings the one
            that most arrays of the file have.

    Returns:
        A model with another `init` and the same `apply`.

    Raises:
        ValueError: the file cannot be read, or an array in it is missing, unknown, of another
            shape, not floating point, NaN or infinite; names the array.
    """
    path = Path(path).expanduser()
    arrays = {
        name: values for name, values in read_weights(path).items() if not name.endswith(IGNORED)
    }
    shapes = _flat(jax.eval_shape(model.init, jax.random.key(0)))
    layers = max(named, key=lambda one: len(arrays.keys() & their_names(shapes, one).values()))
    names = their_names(shapes, layers)
    classifier = list(layers)[-1]
    # The classifier is left out where the file has none, or one of other classes.
    found = [
        arrays[name]
        for place, name in names.items()
        if place[1:-1] == classifier and name in arrays
    ]
    (num_classes,) = shapes["params", *classifier, "bias"].shape
    with_classifier = found and all(len(values) == num_classes for values in found if values.ndim)
    wanted = {
        place: name for place, name in names.items() if with_classifier or place[1:-1] != classifier
    }
    hint = f"Make it from a model of the same architecture with {EXPORT}"
    _refuse_others(
        path, set(wanted.values()) - set(arrays), set(arrays) - set(names.values()), hint
    )
    loaded: dict[Place, np.ndarray] = {}
    for place, name in wanted.items():
        values = _checked(path, name, arrays, their_shape(shapes[place].shape))
        loaded[place] = values.transpose(2, 3, 1, 0) if values.ndim == 4 else values
    return _starting_from(model, loaded)


def started(model: Model, arrays: Mapping[str, np.ndarray], source: str | Path) -> Model:
    """Return the same model, started from parameters and batch statistics of another network of its
    architecture.

    Args:
        model: the network with random weights.
        arrays: by their place in the tree, "params.dense1.kernel" or "batch_stats.norm1.mean".
        source: where they are from, for messages.

    Returns:
        A model with another `init` and the same `apply`.

    Raises:
        ValueError: an array is missing, unknown, of another shape or kind, NaN or infinite; names
            the array.
    """
    shapes = _flat(jax.eval_shape(model.init, jax.random.key(0)))
    kinds = {"params": "params", "state": "batch_stats"}
    names = {place: ".".join((kinds[place[0]], *place[1:])) for place in shapes}
    known = set(names.values())
    hint = "config.model has to be that of the run that trained them"
    _refuse_others(source, known - set(arrays), set(arrays) - known, hint)
    loaded = {
        place: _checked(source, name, arrays, shapes[place].shape) for place, name in names.items()
    }
    return _starting_from(model, loaded)


def _starting_from(model: Model, loaded: Mapping[Place, np.ndarray]) -> Model:
    """Return the same model, with these arrays in place of those that it draws."""

    @jax.jit
    def draw(key: PRNGKeyArray) -> dict[Place, jax.Array]:
        return {
            place: values for place, values in _flat(model.init(key)).items() if place not in loaded
        }

    def init(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        # copies, because a caller may donate what it got to its next step
        stored = {
            place: jnp.array(values, jnp.result_type(float)) for place, values in loaded.items()
        }
        tree = unflatten_dict({**stored, **draw(key)})
        return tree["params"], tree.get("state", {})

    return model._replace(init=init)


def _flat(variables: tuple[PyTree, PyTree]) -> dict[Place, jax.Array]:
    params, state = variables
    return flatten_dict({"params": params, "state": state})


def _refuse_others(source: str | Path, missing: set[str], extra: set[str], hint: str) -> None:
    if missing or extra:
        what = f"{_some(sorted(missing))} missing, {_some(sorted(extra))} left over"
        raise ValueError(f"weights {source} are of another architecture: {what}. {hint}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return counted(len(names), "array") + (f" ({', '.join(names[:5])}{more})" if names else "")


def _checked(
    source: str | Path, name: str, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> np.ndarray:
    values = arrays[name]
    if values.shape != shape:
        raise ValueError(
            f"weights {source}: array {name!r} has shape {values.shape}, this network needs "
            f"{shape}; give those of a model with the same widths, input channels and classes"
        )
    if not np.issubdtype(values.dtype, np.floating):
        raise ValueError(
            f"weights {source}: array {name!r} has dtype {values.dtype}; allowed is floating point"
        )
    if not np.isfinite(values).all():
        raise ValueError(
            f"weights {source}: array {name!r} holds NaN or infinite values; give others"
        )
    return values


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a state dict: `.npz`, `.safetensors`, or `.pth` and `.pt` by PyTorch.

    Raises:
        ValueError: the file is not there or cannot be read, or it takes a package that is not here.
    """
    if path.suffix not in (".safetensors", ".pth", ".pt") or not path.is_file():
        return read_npz(path)
    if path.suffix == ".safetensors":
        safetensors = _imported("safetensors.numpy", path, how_to_install("export"))
        try:
            arrays: dict[str, np.ndarray] = safetensors.load_file(path)
        except Exception as error:  # safetensors raises exceptions of its own
            raise ValueError(f"weights {path} cannot be read: {error}") from error
        return arrays
    torch = _imported("torch", path, f"pip install torch, or make an .npz where it is: {EXPORT}")
    try:
        # A file of PyTorch may run any code unless weights alone are read.
        stored = torch.load(path, map_location="cpu", weights_only=True)
        return {name: np.asarray(values) for name, values in stored.items()}
    except (
        RuntimeError,
        ValueError,
        AttributeError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(f"weights {path} are no plain state dict of PyTorch: {error}") from error
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        raise ValueError(
            f"weights {path} hold more than arrays, which PyTorch does not read as weights alone; "
            "save model.state_dict()"
        ) from error


def _imported(module: str, path: Path, remedy: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"weights {path} need the package {module.split('.')[0]}: {remedy}"
        ) from error


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an `.npz` file.

    Raises:
        ValueError: it is not there, or holds more than plain arrays.
    """
    if not path.is_file():
        raise ValueError(
            f"weights {path} is not {'a file' if path.exists() else 'there'}; make it where "
            f"PyTorch is installed with {EXPORT}, or leave `weights` empty to start at random"
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
                        raise ValueError(
                            "it is no array; a `.pt` or `.pth` file cannot be read directly"
                        )
                    arrays[name] = values
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            where = "" if name is None else f" (array {name!r})"
            why = (
                "it holds Python objects, or is of another kind"
                if "pickle" in str(error)
                else str(error)
            )
            raise ValueError(
                f"weights {path}{where} is not a readable .npz file of plain arrays, or it is "
                f"damaged: {why}. Make it with {EXPORT}"
            ) from error
    return arrays
