"""Starting from weights that were trained before: with torchvision or timm, or in another run."""

import functools
import itertools
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
from fedjax_ssl.models.published import EXPORT, read_weights
from fedjax_ssl.models.residual import RESNET18_BLOCKS, RESNET50_BLOCKS

# Counts of batches, which PyTorch needs only for a momentum that we do not have.
IGNORED = ".num_batches_tracked"

Place = tuple[str, ...]
# a layer's place in our parameters and state, or that of an array without a layer -> its name in
# the state dict
Layers = Mapping[Place, str]

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
    """Turn the shape of an array into PyTorch's: of kernels HWIO, depthwise ones too, OIHW, and
    else the same.
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


def efficientnet_lite0_layers() -> dict[Place, str]:
    """List every layer of `EfficientNetLite0` with its name in the state dicts that follow the
    TensorFlow release; the head is the last.
    """
    layers: dict[Place, str] = {("stem", "conv"): "_conv_stem", ("stem", "norm"): "_bn0"}
    blocks = (
        (stage, f"block{i}_{block}")
        for i, stage in enumerate(STAGES, 1)
        for block in range(1, stage.blocks + 1)
    )
    for number, (stage, ours) in enumerate(blocks):
        theirs = f"_blocks.{number}"
        for place, step in enumerate(("expand", "depthwise", "project")):
            if step == "expand" and stage.expansion == 1:
                continue
            layers |= {
                (ours, step, "conv"): f"{theirs}._{step}_conv",
                (ours, step, "norm"): f"{theirs}._bn{place}",
            }
    return {**layers, ("last", "conv"): "_conv_head", ("last", "norm"): "_bn1", ("head",): "_fc"}


def timm_efficientnet_layers(excitation: bool) -> dict[Place, str]:
    """List every layer of `EfficientNetB0`, or of `EfficientNetLite0` without excitation, with its
    name in timm's state dicts; the head is the last.
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
            if excitation:
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


def resnet_layers(blocks: tuple[int, ...], convolutions: int) -> dict[Place, str]:
    """List every layer of `ResNet18` or `ResNet50` with its name in torchvision's and timm's state
    dicts; the head is the last.

    Args:
        blocks: of each stage.
        convolutions: of a block: 2 of a basic one, 3 of a bottleneck.
    """
    layers: dict[Place, str] = {("stem", "conv"): "conv1", ("stem", "norm"): "bn1"}
    for stage, count in enumerate(blocks, 1):
        for block in range(1, count + 1):
            ours = f"block{stage}_{block}"
            theirs = f"layer{stage}.{block - 1}"
            steps = {f"layer{i}": (f"conv{i}", f"bn{i}") for i in range(1, convolutions + 1)}
            if block == 1 and (stage > 1 or convolutions > 2):
                steps["shortcut"] = "downsample.0", "downsample.1"
            for step, (conv, norm) in steps.items():
                layers |= {
                    (ours, step, "conv"): f"{theirs}.{conv}",
                    (ours, step, "norm"): f"{theirs}.{norm}",
                }
    return {**layers, ("head",): "fc"}


def resnet18_layers() -> dict[Place, str]:
    """List every layer of `ResNet18` with its name in torchvision and timm."""
    return resnet_layers(RESNET18_BLOCKS, convolutions=2)


def resnet50_layers() -> dict[Place, str]:
    """List every layer of `ResNet50` with its name in torchvision and timm."""
    return resnet_layers(RESNET50_BLOCKS, convolutions=3)


def vit_layers(depth: int = 48) -> dict[Place, str]:
    """List every layer of `ViTS16` and `ViTB16`, of so many blocks at most, with its name in timm;
    the head is the last.
    """
    layers: dict[Place, str] = {
        ("patches",): "patch_embed.proj",
        ("cls_token",): "cls_token",
        ("pos_embed",): "pos_embed",
    }
    steps: dict[Place, str] = {
        ("norm1",): "norm1",
        ("attention", "qkv"): "attn.qkv",
        ("attention", "proj"): "attn.proj",
        ("norm2",): "norm2",
        ("dense1",): "mlp.fc1",
        ("dense2",): "mlp.fc2",
    }
    for block, (ours, theirs) in itertools.product(range(depth), steps.items()):
        layers[(f"block{block}", *ours)] = f"blocks.{block}.{theirs}"
    return {**layers, ("norm",): "norm", ("head",): "head"}


# torchvision's names of a vision transformer's arrays -> timm's, by their parts in this order
_VIT_OF_TORCHVISION = {
    "encoder.layers.encoder_layer_": "blocks.",
    "encoder.pos_embedding": "pos_embed",
    "encoder.ln.": "norm.",
    "class_token": "cls_token",
    "conv_proj.": "patch_embed.proj.",
    "heads.head.": "head.",
    ".ln_": ".norm",
    ".self_attention.in_proj_": ".attn.qkv.",
    ".self_attention.out_proj.": ".attn.proj.",
    ".mlp.0.": ".mlp.fc1.",
    ".mlp.3.": ".mlp.fc2.",
    ".mlp.linear_1.": ".mlp.fc1.",
    ".mlp.linear_2.": ".mlp.fc2.",
}


def _in_names_of_timm(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a vision transformer by timm's names; those of others as they are."""
    if "class_token" not in arrays:
        return arrays
    renamed = {}
    for name, values in arrays.items():
        for theirs, ours in _VIT_OF_TORCHVISION.items():
            name = name.replace(theirs, ours)
        renamed[name] = values
    return renamed


LAYERS: Mapping[str, Callable[[], Layers]] = {
    "efficientnet_b0": efficientnet_b0_layers,
    "efficientnet_lite0": efficientnet_lite0_layers,
    "resnet18": resnet18_layers,
    "resnet50": resnet50_layers,
    "vit_s16": vit_layers,
    "vit_b16": vit_layers,
}
# Other names of the same layers.
TIMM_LAYERS: Mapping[str, Callable[[], Layers]] = {
    "efficientnet_b0": functools.partial(timm_efficientnet_layers, excitation=True),
    "efficientnet_lite0": functools.partial(timm_efficientnet_layers, excitation=False),
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
        name: values
        for name, values in _in_names_of_timm(read_weights(path)).items()
        if not name.endswith(IGNORED)
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
    if ("params", "pos_embed") in wanted:
        _check_side(path, arrays, shapes["params", "pos_embed"].shape[1])
    loaded: dict[Place, np.ndarray] = {}
    for place, name in wanted.items():
        values = _checked(path, name, arrays, their_shape(shapes[place].shape))
        loaded[place] = values.transpose(2, 3, 1, 0) if values.ndim == 4 else values
    return _starting_from(model, loaded)


def _check_side(path: Path, arrays: Mapping[str, np.ndarray], tokens: int) -> None:
    """Refuse positions of other images than those that a vision transformer has so many tokens
    for.
    """
    theirs = arrays["pos_embed"].shape[1:-1]
    if len(theirs) == 1 and theirs[0] != tokens:
        side = round((theirs[0] - 1) ** 0.5) * arrays["patch_embed.proj.weight"].shape[-1]
        raise ValueError(
            f"weights {path}: 'pos_embed' has {theirs[0]} positions, this network {tokens}; bring "
            f"images to {side} x {side} pixels, for which the weights are (model.side={side}; "
            f"--side {side} of `fedjax-ssl features`)"
        )


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
