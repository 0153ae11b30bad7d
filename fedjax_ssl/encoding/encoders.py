"""Encoders by name: a network of timm, the network of a run, or a user's own function."""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fedjax_ssl import own_code
from fedjax_ssl.data import Dataset
from fedjax_ssl.data.dataset import rows_of
from fedjax_ssl.data.fingerprint import of_arrays
from fedjax_ssl.data.reading.own import SHOWN
from fedjax_ssl.errors import UserError, how_to_install
from fedjax_ssl.trained.trained_model import load_run

_LOOKED_AT = 1000  # images whose values are checked
_BYTE = 255
TIMM = "timm:"  # prefix of the names of timm's networks


class Encoder(NamedTuple):
    """A function from examples to feature vectors, and facts about it."""

    known_by: Mapping[str, Any]  # facts that differ if its features may differ; fits into JSON
    encode: Callable[..., Any]
    # ^ inputs as stored -> [n, d]; also takes the client of each input if `clients` is set
    takes: str = ""  # preparation of inputs, in words; "": the encoder does it itself
    clients: Mapping[str, Sequence[str]] | None = None
    # ^ split -> client of each example; None: inputs do not depend on the client


class Moments(NamedTuple):
    """Mean and deviation of inputs in place of an encoder's own, on the scale where the largest
    stored value is 1; None: the encoder's own.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


_THEIR_OWN = Moments()


def encoder(
    name: str,
    dataset: Dataset,
    weights: Path | None,
    side: int | None,
    given: Moments = _THEIR_OWN,
) -> Encoder:
    """Find an encoder.

    Args:
        name: "timm:NAME", "module:name", or the folder of a run.
        dataset: dataset to encode.
        weights: file of weights for a network of timm; None: the weights that timm downloads.
        side: side of images for a network of timm; None: the side of its training.
        given: mean and deviation with which the weights of a network of timm were trained.

    Returns:
        The encoder.

    Raises:
        ValueError: an unknown name, or arguments that do not fit it.
    """
    if name.startswith(TIMM):
        return _timm(name, dataset, weights, side, given)
    options: dict[str, Any] = {"--weights": weights, "--side": side}
    options |= {"--data.mean": given.mean, "--data.std": given.std}
    if idle := [option for option, value in options.items() if value is not None]:
        raise UserError(
            f"{idle[0]} is for networks of timm (timm:NAME), --encoder is {name!r}; leave it out"
        )
    if ":" in name:
        return _own(name, dataset)
    if not Path(name).is_dir():
        raise UserError(
            f"--encoder {name!r} is no folder of a run; write timm:NAME for a network of timm, or "
            "module:name for a function of your own"
        )
    return _of_run(Path(name), dataset)


def _timm(
    name: str, dataset: Dataset, weights: Path | None, side: int | None, given: Moments
) -> Encoder:
    """Return a network of timm up to its last layer."""
    shape = dataset.input_shape
    if len(shape) != 3 or shape[-1] not in (1, 3):
        raise UserError(
            f"--encoder {name} takes images of 1 or 3 channels; inputs of {dataset.name!r} have "
            f"shape {list(shape)}"
        )
    _check_range(dataset)
    try:
        timm: Any = importlib.import_module("timm")
    except ImportError as error:
        raise UserError(
            f"--encoder {name} needs the package timm: {how_to_install('features')}"
        ) from error
    try:
        net = timm.create_model(name.removeprefix(TIMM), pretrained=weights is None)
        if weights is not None:
            timm.models.load_checkpoint(net, str(weights))
    except Exception as error:  # timm raises many kinds: unknown names, no network, other weights
        raise UserError(f"--encoder {name}: {error}") from error
    net.reset_classifier(0)
    facts = timm.data.resolve_model_data_config(net)
    length = side or facts["input_size"][-1]
    mean = _three("mean", given.mean or facts["mean"])
    std = _three("std", given.std or facts["std"])
    module = _torch(net, 1.0)

    @jax.jit
    def as_inputs(images: Shaped[Array, "n h w c"]) -> Float[Array, "n side side 3"]:
        values = images.astype(jnp.float32) / dataset.input_max
        colour = jnp.broadcast_to(values, (*values.shape[:-1], 3))
        sized = jax.image.resize(colour, (len(images), length, length, 3), "linear")
        return (sized - jnp.asarray(mean)) / jnp.asarray(std)

    arrays = (np.atleast_1d(values.numpy()) for values in net.state_dict().values())
    known = {"name": name, "weights": of_arrays(arrays), "side": length, "mean": mean, "std": std}
    takes = (
        f"images are brought to {length} x {length}, divided by {dataset.input_max:g} and "
        f"standardized by mean {_listed(mean)} and deviation {_listed(std)}"
    )
    return Encoder(known, lambda images: module(np.asarray(as_inputs(images))), takes)


def _three(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Return a number for each of the three channels, of one or three.

    Raises:
        UserError: another number of values, or a deviation that is not positive.
    """
    if len(values) not in (1, 3) or (name == "std" and min(values) <= 0):
        raise UserError(
            f"--data.{name} is {list(values)}; a network of timm takes one number or three, a "
            "deviation above 0"
        )
    return tuple(map(float, values)) * (3 // len(values))


def _check_range(dataset: Dataset) -> None:
    """Refuse images whose values are not from 0 to the largest value, which the weights take for
    black and white, for example images standardized by client.

    Raises:
        UserError: some are below or above, or none is more than 1 of 255.
    """
    first = dataset.train.x[:_LOOKED_AT]
    if "client_statistics" in dataset.extra or first.dtype == np.uint8:
        return
    low = float(first.min())
    high = float(first.max())
    if low < 0 or high > dataset.input_max or high <= 1 < dataset.input_max:
        remedy = "bring them to 0 to 1" if low < 0 else f"give --data.input_max={high:g}"
        if 1 < high <= _BYTE:
            remedy = f"give --data.input_max={_BYTE}, or store them as uint8"
        raise UserError(
            f"images of {dataset.name!r} have values from {low:g} to {high:g}, and those from 0 to "
            f"{dataset.input_max:g} are taken for black to white; {remedy}"
        )


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _of_run(folder: Path, dataset: Dataset) -> Encoder:
    """Return the network of a run up to its last layer."""
    model = load_run(folder)
    if model.input_shape != dataset.input_shape:
        raise UserError(
            f"--encoder {folder} was trained on inputs of shape {list(model.input_shape)}; those "
            f"of {dataset.name!r} have {list(dataset.input_shape)}"
        )
    known = {
        "run": model.config.method.name,
        "round": model.round,
        "parameters": model.digest(),
    }
    if not model.scales:
        return Encoder(known, model.embed)
    clients = _clients(dataset)
    for name, rows in rows_of(clients["train"]).items():
        # Inputs of a dataset that is standardized by client are no longer those of training.
        if not model.scales.has(name) or "client_statistics" in dataset.extra:
            model.add_client(name, dataset.train.x[rows])
    if strangers := set(clients.get("test", ())) - set(clients["train"]):
        names = sorted(name for name in strangers if not model.scales.has(name))
        if names:
            raise UserError(
                f"--encoder {folder} standardizes inputs by client, and {', '.join(names[:SHOWN])} "
                f"of {dataset.name!r} has test examples alone; give it training examples"
            )
    takes = "inputs are standardized by mean and deviation of each client, as in the run's training"
    return Encoder(known, lambda inputs, names: model.embed(inputs, client=names), takes, clients)


def _clients(dataset: Dataset) -> dict[str, list[str]]:
    """Return the client of every example, by split; "" if unknown."""
    found = {}
    for name, split in dataset.splits().items():
        numbers = [] if split.client is None else split.client.tolist()
        known = dataset.client_names
        names = [str(one) if known is None else known[one] for one in numbers]
        found[name] = names or [""] * len(split)
    return found


def _own(name: str, dataset: Dataset) -> Encoder:
    """Return a user's own function: a plain one, or a module in evaluation mode."""
    found = own_code.import_named("encoder", name)
    packages = metadata.packages_distributions().get(re.split(r"[.:]", name)[0], ())
    versions = {one: metadata.version(one) for one in packages}
    known = {"own": name, "code": own_code.digests([name]) or versions}
    if hasattr(found, "state_dict") and hasattr(found, "eval"):
        _check_range(dataset)
        function = _torch(found, dataset.input_max)
    else:
        own_code.check_arguments(f"encoder {name!r}", found, ("inputs",))
        if hasattr(found, "eval"):  # a module of nnx
            found.eval()
        function = found

    def encode(inputs: np.ndarray) -> Any:
        try:
            return function(inputs)
        except Exception as error:
            told = own_code.blame(error) or f"{type(error).__name__}: {own_code.said(error)}"
            given = f"{inputs.dtype} {list(inputs.shape)}"
            raise UserError(f"encoder {name!r}, given {given}, raised {told}") from error

    return Encoder(known, encode)


def _torch(module: Any, input_max: float) -> Callable[[np.ndarray], Any]:
    """Run a module of PyTorch in evaluation mode on float32 [n, C, H, W], the largest value 1."""
    torch = importlib.import_module("torch")
    module.eval()

    def encode(inputs: np.ndarray) -> Any:
        values = np.asarray(inputs, np.float32) / input_max
        if values.ndim == 4:
            values = values.transpose(0, 3, 1, 2)
        with torch.no_grad():
            return module(torch.from_numpy(np.ascontiguousarray(values))).numpy()

    return encode


def checked(features: Any, count: int, width: int | None, name: str) -> Float[np.ndarray, "n d"]:
    """Take what an encoder returned for `count` inputs.

    Args:
        features: what it returned.
        count: inputs that it got.
        width: numbers that it returned for an input before; None: nobody knows.
        name: of the encoder.

    Raises:
        UserError: another shape, another width than before, or values that half precision does not
            hold.
    """
    values = np.asarray(features)
    if values.ndim != 2 or len(values) != count or values.dtype.kind != "f" or not values.shape[1]:
        raise UserError(
            f"encoder {name} returned {values.dtype} {list(values.shape)} for {count} inputs; "
            f"floating-point [{count}, d] has to come"
        )
    if width is not None and values.shape[1] != width:
        raise UserError(
            f"encoder {name} returned {values.shape[1]} numbers for an input and {width} for "
            "earlier ones; every batch needs the same width"
        )
    largest = np.finfo(np.float16).max
    if not (np.abs(values) <= largest).all():
        raise UserError(
            f"encoder {name} returned NaN or values beyond {largest:,.0f}, where half precision "
            "ends; scale its features"
        )
    return values
