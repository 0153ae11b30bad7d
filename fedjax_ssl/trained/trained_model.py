"""A trained model: a run folder as a predictor."""

import importlib
import json
import math
import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jaxtyping import Bool, Float, Shaped

from fedjax_ssl.checks import required
from fedjax_ssl.data.dataset import check_finite, rows_of
from fedjax_ssl.data.federation.federated_data import client_number
from fedjax_ssl.data.fingerprint import of_arrays, of_examples
from fedjax_ssl.data.reading.own import Findings, as_text, named
from fedjax_ssl.data.reading.table_reading import TableReading
from fedjax_ssl.errors import how_to_install, note
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.folder.files import write_atomically
from fedjax_ssl.folder.stored_run import StoredRun
from fedjax_ssl.registry import did_you_mean
from fedjax_ssl.runs import model_file
from fedjax_ssl.runs.model_file import SEEN, TrainedModelError
from fedjax_ssl.trained.scales import Client, Scale, Scales, whose_inputs

if TYPE_CHECKING:  # takes long to import
    import pandas


@required
def load_run(workdir: str | os.PathLike, checkpoint: str = "auto") -> "TrainedModel":
    """Load the trained model of a run; the run's data are not needed.

    If the run is still in progress, it is the model of the last checkpoint.

    Args:
        workdir: the run folder.
        checkpoint: "last": of the last round. "best": of the best validation accuracy. "auto": the
            best one where the run has validation examples, otherwise the last one.

    Returns:
        The model.

    Raises:
        TrainedModelError: the folder holds no run, or none with a model yet; or code of the user's
            own that the model needs is not there, or has changed.
        CheckpointError: its checkpoints cannot be used.
        ConfigError: its config cannot be used here.

    Example:
        >>> _ = fs.run(fs.load_config("digits_fedavg", {"rounds": 2}), "runs/short", quiet=True)
        >>> model = fs.load_run("runs/short")
        >>> model.predict(fs.load_dataset("digits").train.x[:3]).shape
        (3, 10)
    """
    return TrainedModel(*model_file.find(Path(workdir), checkpoint))


class TrainedModel:
    """The trained model of a run, from `fedjax_ssl.load_run`.

    Attributes:
        path: the run folder.
        config: the run's config, resolved and locked.
        round: rounds behind this model.
        checkpoint: "last" or "best" (by validation accuracy).
        metrics: the row of that round in `metrics.csv`.
        summary: `summary.json`; None for a run that is not complete.
        class_names: K names; column k of a prediction is class k.
        client_names: all clients'; those that train come first.
        input_shape: one example's.
        input_dtype: type of the inputs as the dataset stores them: uint8 or float32.
        input_max: the largest value that an input can have, before it is standardized.
        reading: conversion of files to inputs in training; None: unknown.
        temperature: divides the logits of the global model, fitted on validation examples at the
            end of the run; None: none for this checkpoint.
        scales: mean and deviation by client; empty if all inputs are standardized alike.
    """

    def __init__(
        self,
        stored: StoredRun,
        description: dict[str, Any],
        checkpoint: str,
        checkpoints: Checkpoints,
    ):
        """Restore the last of the checkpoints; `load_run` calls this."""
        self.path = stored.path
        self.checkpoint = checkpoint
        self.summary = stored.summary
        if sentence := (self.summary or {}).get("diverged"):
            note(f"{self.path}: {sentence}")
        self._stored = stored
        self._description = description
        self.config, rebuilt = model_file.rebuild(stored, description)
        self.round, state, _ = checkpoints.restore(rebuilt.state)
        self.metrics = next((row for row in stored.rows if row["round"] == self.round), {})
        self.class_names = rebuilt.dataset.class_names
        self.client_names = rebuilt.client_names
        self.input_shape = rebuilt.dataset.input_shape
        self.input_dtype = rebuilt.dataset.train.x.dtype
        self.input_max: float = rebuilt.dataset.input_max
        self.reading = rebuilt.dataset.reading
        fitted = description.get("temperature") or {}
        # It is fitted for one model: another checkpoint of the run has none.
        self.temperature: float | None = (
            fitted.get("value") if fitted.get("round") == self.round else None
        )
        self._state = jax.tree.map(jnp.asarray, state)
        self._method = rebuilt.method
        self._num_clients = rebuilt.num_clients
        self._compiled: dict[str, Callable[..., jax.Array]] = {}
        self._clients = Checkpoints(self.path, folder="clients")
        self.scales = Scales(description["inputs"])

    def __repr__(self) -> str:
        """Return the method, dataset, round and accuracy."""
        accuracy = self.metrics.get("test_accuracy")
        scored = "" if accuracy is None else f", test accuracy {accuracy:.2%}"
        return f"<{self.config.method.name} on {self.config.data.name}, round {self.round}{scored}>"

    def predict(
        self,
        inputs: Shaped[np.ndarray, "n ..."],
        *,
        client: Client = None,
        batch_size: int = 512,
        calibrated: bool = True,
    ) -> Float[np.ndarray, "n K"]:
        """Return class probabilities; a model of a table also takes rows as a DataFrame.

        Args:
            inputs: raw, as the dataset stores them: [n, *input_shape], flat rows, or grey images
                without a channel axis; of `input_dtype`, or of a type that holds the same values.
            client: by the model of this client, named as in `client_names` (or by its number, where
                no name is one), where clients have models of their own, else by the one that it had
                after local training, before all were averaged, in the round that
                `config.save_clients` kept; None: by the global model. Of a run with
                `data.standardize="client"`, the client whose inputs these are; one that the run did
                not have, and None, is a new site, whose inputs are standardized by their own mean
                and deviation. Or a list, one for each input; by default the column of a DataFrame
                that the run was told of.
            batch_size: examples per forward pass, at most.
            calibrated: divide the global model's logits by `temperature`, if there is one.

        Returns:
            Probabilities, float32, rows sum to 1.

        Raises:
            TrainedModelError: inputs of another shape or type, an unknown client, or no such model.
        """
        values, whose = self._values(inputs, client)

        def of_one(rows: Any, client: Client) -> np.ndarray:
            scale = self.scales.of(values[rows], client)
            whose_model = self._with_model(client)
            way, function, model = self._function(whose_model, calibrated)
            predict = partial(self._compiled.setdefault(way, jax.jit(function)), *model)
            return self._in_batches(predict, values[rows], scale, batch_size)

        alike = bool(self.scales) and self._method.predict_for is None  # one model for all clients
        if alike or not isinstance(whose, list):
            return of_one(slice(None), whose)
        found = np.zeros((len(values), len(self.class_names)), np.float32)
        for name, rows in rows_of(whose).items():
            found[rows] = of_one(rows, name)
        return found

    def temperature_for(self, client: Client = None) -> float | None:
        """Return the temperature that `predict` uses: `temperature`, but None for clients' own
        models.
        """
        tells_inputs = self._method.predict_for is None and self.scales
        return self.temperature if client is None or tells_inputs else None

    def add_client(self, name: str, inputs: Shaped[np.ndarray, "n ..."]) -> None:
        """Store mean and deviation of a new site's inputs, if a run standardizes by client.

        Args:
            name: its name in `predict` and `embed`.
            inputs: all its inputs, raw; as for `predict`.
        """
        if not self.scales:
            raise TrainedModelError("this run standardizes all inputs alike; leave add_client out")
        self.scales.add(name, self._values(inputs, name)[0])

    def embed(
        self,
        inputs: Shaped[np.ndarray, "n ..."],
        *,
        client: Client = None,
        batch_size: int = 512,
    ) -> Float[np.ndarray, "n d"]:
        """Return features of the global model, its head's inputs.

        Args:
            inputs: as for `predict`.
            client: the one whose inputs these are, or a list, of a run with
                `data.standardize="client"`; as for `predict`.
            batch_size: as for `predict`.

        Returns:
            Features, float32.

        Raises:
            TrainedModelError: inputs of another shape or type, a client whose inputs are like all
                others', or a method without features.
        """
        if client is not None and not self.scales:
            raise TrainedModelError(
                f"client is {client!r}, but features are the global model's; leave client out"
            )
        if self._method.embed is None:
            raise TrainedModelError(
                f"method {self.config.method.name!r} with "
                f"config.federated.name={self.config.federated.name!r} has no global model, and "
                "so no features"
            )
        embed = self._compiled.setdefault("embed", jax.jit(self._method.embed))
        function = partial(embed, self._state)
        values, whose = self._values(inputs, client)
        return self._in_batches(function, values, self.scales.of(values, whose), batch_size)

    def digest(self) -> str:
        """Compute a digest of the global model: its parameters, and everything else in its
        embedding.
        """
        leaves = jax.tree.leaves(self._state._replace(clients={}))
        return of_arrays(np.atleast_1d(np.asarray(leaf)) for leaf in leaves)

    def save_parameters(self, path: str | os.PathLike, *, client: int | str | None = None) -> Path:
        """Write the network's parameters and batch statistics as a `.safetensors` file.

        Its names are those of the network's tree with dots between ("params.Dense_0.kernel",
        "batch_stats..."), and its metadata say what goes in and comes out. Needs the extra
        `export`.

        Args:
            path: the file.
            client: as for `predict`.

        Returns:
            The file.

        Raises:
            TrainedModelError: as `predict`; a method whose predictions are no network's; or
                safetensors is not there.
        """
        if self._method.network is None:
            raise TrainedModelError(
                f"method {self.config.method.name!r} does not say which network it predicts with"
            )
        model = self._model_before_average(client)
        parameters, statistics = model or self._method.network(
            self._state, self._client_number(client)
        )
        network = self.config.model.to_dict()
        facts = {
            "method": self.config.method.name,
            "model": {name: value for name, value in network.items() if value is not None},
            "inputs": self._description["inputs"],
            "class_names": list(self.class_names),
            "reading": self._description.get("reading"),
            "round": self.round,
            "temperature": self.temperature_for(client),  # divides the logits
        }
        trees = jax.device_get({"params": parameters, "batch_stats": statistics})
        arrays = {
            name: np.ascontiguousarray(array)
            for name, array in flatten_dict(trees, sep=".").items()
            if hasattr(array, "shape")
        }
        try:
            safetensors = importlib.import_module("safetensors.numpy")
        except ImportError as error:
            raise TrainedModelError(
                f"this needs the package safetensors: {how_to_install('export')}"
            ) from error
        write_atomically(path, safetensors.save(arrays, metadata={"fedjax_ssl": json.dumps(facts)}))
        return Path(path)

    def was_trained_on(self, inputs: Shaped[np.ndarray, "n ..."]) -> Bool[np.ndarray, " n"]:
        """Return the mask of inputs, as of `predict`, whose labels the run has seen in training or
        in the choice of its round; all False if the folder does not say.
        """
        file = self.path / SEEN
        values, _ = self._values(inputs, "")
        if not file.is_file():
            return np.zeros(len(values), bool)
        return np.isin(of_examples(values), np.array(file.read_text().split()))

    def _with_model(self, client: Client) -> int | str | None:
        """Return the client whose model is used; a new site, and one of several clients, has the
        global model.
        """
        if client is None or not isinstance(client, int | str):
            return None
        if not self.scales or self._method.predict_for is None:
            return client
        known = self.client_names[: self._num_clients]
        return None if client_number(known, client) is None else client

    def _model_before_average(self, client: int | str | None) -> tuple[Any, Any] | None:
        """Read a client's parameters and batch statistics from the saved round; None if they are
        not requested.
        """
        round = self._clients.latest()
        if client is None or round is None:
            return None
        number = self._number_of(client)
        arrays = self._clients.arrays(round)
        there = arrays["['client']"].tolist()
        if number not in there:
            names = [self.client_names[one] for one in there]
            raise TrainedModelError(
                f"client {client!r} did not train in round {round}. Clients: {_some(names)}"
            )
        place = there.index(number)
        assert self._method.network is not None, "whatever trains clients has a network"
        params, model_state = jax.eval_shape(self._method.network, self._state)
        model = jax.tree_util.tree_map_with_path(
            lambda path, _: jnp.asarray(arrays[jax.tree_util.keystr(path)][place]),
            {"params": params, "model_state": model_state},
        )
        return model["params"], model["model_state"]

    def _function(
        self, client: int | str | None, calibrated: bool = True
    ) -> tuple[str, Callable[..., jax.Array], tuple[Any, ...]]:
        """Return (key, function, model) for a function (*model, inputs) -> probabilities."""
        if (model := self._model_before_average(client)) is not None:
            assert self._method.apply is not None, "runs of other methods keep no models"
            return "before average", _exp(self._method.apply), model
        number = self._client_number(client)
        temperature = self.temperature_for(client) if calibrated else None
        if number is not None and self._method.predict_for is not None:
            return "client", _exp(self._method.predict_for), (self._state, jnp.int32(number))
        predict = self._method.predict
        if temperature is None:
            return "global", _exp(predict), (self._state,)

        def calibrated_one(*given: Any) -> jax.Array:
            return jax.nn.softmax(predict(*given) / temperature)

        return "calibrated", calibrated_one, (self._state,)

    def _number_of(self, client: int | str) -> int:
        known = self.client_names[: self._num_clients]
        if (number := client_number(known, client)) is None:
            raise TrainedModelError(
                f"unknown client {client!r}.{did_you_mean(client, known)} Clients: {_some(known)}"
            )
        return number

    def _client_number(self, client: int | str | None) -> int | None:
        if client is None:
            if self._method.recipe.alone:
                known = self.client_names[: self._num_clients]
                raise TrainedModelError(
                    "the clients of this run trained alone, so that there is no global model; "
                    f"name the client whose model is to be used: {_some(known)}"
                )
            return None
        if self._method.predict_for is not None:
            return self._number_of(client)
        if self.scales:
            return None
        raise TrainedModelError(
            f"client is {client!r}, but with method {self.config.method.name!r} all clients "
            "have the global model; leave client out. A run with --save_clients=last keeps "
            "the models that its clients had before the last average"
        )

    def _in_batches(
        self,
        function: Callable[..., jax.Array],
        values: np.ndarray,
        scale: Scale | None,
        batch_size: int,
    ) -> np.ndarray:
        """Compute results in batches of one size, so that one program serves all; the last batch is
        filled up with zeros.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise TrainedModelError(
                f"batch_size is {batch_size!r}; it must be a whole number of at least 1"
            )
        count = len(values)
        # Few inputs are padded to the next power of two, so that changing numbers do not compile
        # each time.
        size = min(batch_size, 1 << max(count - 1, 0).bit_length())
        results = []
        for start in range(0, max(count, 1), size):
            batch = values[start : start + size]
            if scale is not None:
                by_row = scale[0].ndim == values.ndim
                here = [one[start : start + size] if by_row else one for one in scale]
                batch = self.scales.apply((here[0], here[1]), batch)
            filled = np.zeros((size, *self.input_shape), self.input_dtype)
            filled[: len(batch)] = batch
            results.append(np.asarray(function(filled))[: len(batch)])
        return np.concatenate(results)

    def _values(self, inputs: Any, client: Any) -> tuple[np.ndarray, Client]:
        """Return inputs in the model's form, and their owner: one client, or a list of one for
        each.
        """
        if hasattr(inputs, "columns"):
            return self._rows(inputs, client)
        values = self._checked(inputs)
        return values, whose_inputs(client, len(values))

    def _rows(self, table: "pandas.DataFrame", client: Any) -> tuple[np.ndarray, Client]:
        if not isinstance(self.reading, TableReading):
            raise TrainedModelError(
                "inputs are a table, but this model did not learn from one; give an array"
            )
        findings = Findings()
        table = as_text(table)
        column = self.reading.roles.get("client")
        if client is None and self.scales and column in table:
            client = named(table[column].tolist())
        client = whose_inputs(client, len(table))
        table = table.set_axis([f"row {row}" for row in range(len(table))])
        rows, used = self.reading.read(table, findings)
        for text in findings.notes:
            note(text)
        if findings.problems or not used.all():
            raise TrainedModelError("; ".join(findings.problems or findings.notes))
        return self._values(rows, client)

    def _checked(self, inputs: Any) -> np.ndarray:
        values = np.asarray(inputs)
        shape = self.input_shape
        # Also flat rows of images, and grey images without a channel axis.
        grey = shape[:-1] if shape[-1] == 1 else shape
        if len(shape) > 1 and values.shape[1:] in ((math.prod(shape),), grey):
            values = values.reshape(-1, *shape)
        if values.shape[1:] != shape or values.ndim != len(shape) + 1:
            wanted = f"[n, {', '.join(map(str, shape))}]"
            hint = ""
            if values.shape in (shape, shape[:-1]):
                hint = " This looks like a single example: give inputs[None]"
            raise TrainedModelError(
                f"inputs have shape {list(values.shape)}; this model takes {wanted}.{hint}"
            )
        try:
            check_finite("inputs", values)
        except ValueError as error:
            raise TrainedModelError(str(error)) from error
        if self.input_dtype == np.uint8:
            return self._as_stored(values)
        if values.dtype.kind not in "iuf" or (
            values.dtype == np.uint8
            and len(shape) == 3
            and not (self.scales and self.input_max == np.iinfo(np.uint8).max)
        ):
            raise TrainedModelError(
                f"inputs are {values.dtype}; this model takes floating-point values, as its "
                f"dataset stores them (up to {self.input_max:g} before they are standardized, "
                "which the model does)"
            )
        return values.astype(np.float32, copy=False)

    def _as_stored(self, values: np.ndarray) -> np.ndarray:
        """Return whole numbers of any type as uint8."""
        lowest, highest = (values.min(), values.max()) if values.size else (0, 0)
        divided = values.dtype.kind == "f" and 0 < highest <= 1 < self.input_max
        whole = values.dtype.kind in "iuf" and bool((values == np.rint(values)).all())
        if divided or not whole or lowest < 0 or highest > self.input_max:
            raise TrainedModelError(
                f"inputs are {values.dtype}, from {lowest} to {highest}; this model takes them as "
                f"its dataset stores them: whole numbers (uint8) from 0 to {self.input_max:g}. "
                "Give raw values, neither divided nor standardized: the model does that"
            )
        return values.astype(np.uint8, copy=False)


def _exp(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda *given: jnp.exp(function(*given))


def _some(names: Collection[str]) -> str:
    more = f", ... ({len(names)} clients)" if len(names) > 10 else ""
    return ", ".join(list(names)[:10]) + more
