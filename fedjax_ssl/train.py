"""From a config to a trained model: `make_train` as one pure function, `run` with a run folder around it."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, federated, models, prediction, tracking
from fedjax_ssl.config import ConfigError
from fedjax_ssl.experiment import Experiment, build_method, federate, load_experiment
from fedjax_ssl.federated import Method, ServerState
from fedjax_ssl.federated.method import Metrics

TOTALS = ("bytes_down", "bytes_up", "local_steps", "examples", "clients", "dropped_clients")


def make_train(
    config: ml_collections.ConfigDict,
) -> Callable[..., tuple[ServerState, Metrics]]:
    """The whole experiment as one pure function.

    `train(key)` draws the partition, the labels kept, the initial network and everything else from `key`, runs all
    rounds and evaluates every `config.eval_every` rounds. `jax.jit(jax.vmap(train))(keys)` is a seed sweep in one
    compiled program; `train(key, {"optimizer.learning_rate": rate})` replaces settings that enter as numbers, so it
    can be vmapped over them too.

    Args:
        config: as a config file returns it; what its section `prediction` asks for is left to `run`.

    Returns:
        `train(key, hyperparameters=None) -> (final state, metrics)`; every metric is an array with one entry per
        evaluation, "round" says after which.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
    """
    experiment = load_experiment(config)
    if not experiment.config.rounds:
        raise ConfigError("config.rounds is 0, so there is nothing to train; `run` makes predictions without training")

    def train(key: Key[Array, ""], hyperparameters: Mapping[str, Array] | None = None) -> tuple[ServerState, Metrics]:
        federation = federate(experiment, key)
        method = build_method(experiment, federation, hyperparameters)
        state = method.init(key, federation)

        every, rounds = experiment.config.eval_every, experiment.config.rounds
        state, metrics = jax.lax.scan(
            lambda s, _: _block(method, s, key, federation, every), state, length=rounds // every
        )
        if rounds % every:
            state, last = _block(method, state, key, federation, rounds % every)
            metrics = jax.tree.map(lambda all, one: jnp.append(all, one), metrics, last)
        return state, metrics

    return train


def run_rounds(
    method: Method, key: Key[Array, ""], state: ServerState, federation: data.FederatedData, rounds: int
) -> tuple[ServerState, Metrics]:
    """Runs rounds in one compiled loop.

    Returns:
        (state, metrics): "round" is the number of rounds done; counts and bytes are sums, everything else is the mean
        over the rounds in which it was defined.
    """
    state, infos = jax.lax.scan(lambda s, _: method.round(key, s, federation), state, length=rounds)
    summary = {name: jnp.sum(values) if name in TOTALS else jnp.nanmean(values) for name, values in infos.items()}
    return state, {"round": state.round, **summary}


# Fields that change how a run is watched, where it finds its data or what is done with the trained network, but not
# the network.
UNCOMPARED = ("checkpoint_every", "data.root", "data.download", "prediction")


def run(config: ml_collections.ConfigDict, workdir: str | Path) -> dict[str, Any]:
    """Runs an experiment in a run folder, or goes on with the one that is there.

    The same config on the same folder resumes from the last checkpoint and ends in the same numbers, bit for bit.

    Args:
        config: as a config file returns it.
        workdir: the run folder; see `fedjax_ssl.tracking.RunFolder`.

    Returns:
        What `summary.json` holds.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
        ConfigMismatch: the folder holds a run with another config.
        CheckpointError: the folder's checkpoints cannot be used.
    """
    resolved = configs.resolve(config)
    # Sums that are not exact depend on the number of devices.
    ignored = UNCOMPARED if resolved.federated.reduce == "fast" else (*UNCOMPARED, "federated.devices")
    with tracking.RunFolder(workdir, resolved.to_dict(), ignore=ignored) as folder:
        return _run_in(folder, load_experiment(resolved))


def _run_in(folder: tracking.RunFolder, experiment: Experiment) -> dict[str, Any]:
    config, key = experiment.config, jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    prediction.check(config, federation)
    with configs.naming("data, config.partition or config.supervision"):
        data.validate(federation, truth_required=not config.prediction.predictors)
        if not np.any(federation.num_labelled):
            raise ConfigError(
                f"no client has a label, and method {config.method.name!r} learns from the clients' labels only"
            )
    method = build_method(experiment, federation)
    template = jax.eval_shape(method.init, key, federation)

    checkpoints, log = tracking.Checkpoints(folder.path), tracking.MetricLog(folder.path)
    start, seconds = 0, {"compile_seconds": 0.0, "train_seconds": 0.0}
    if checkpoints.latest() is None:
        state = jax.jit(method.init)(key, federation)
    else:
        start, state, seconds = checkpoints.restore(template)
    log.truncate(after_round=start)

    files = {"summary": folder.summary_file}
    if config.rounds:
        files |= {"metrics": folder.metrics_csv, "curves": folder.curves_file}
    if config.prediction.predictors:
        files |= {"predictions": folder.predictions_csv, "by client": folder.clients_csv}
    with tracking.Progress(config.rounds, start_round=start) as progress:
        progress.start(
            method=config.method.name,
            model=config.model.name,
            num_parameters=models.count_parameters(template.params),
            dataset=config.data.name,
            counts={name: count for name, count in federation.summary().items() if count},
            device=tracking.device_description(),
            workdir=folder.path,
        )
        if start == 0:
            tracking.write_atomically(
                folder.path / "partition.txt",
                data.report(federation, experiment.dataset.class_names, max_rows=federation.num_clients) + "\n",
            )
            data.plot_partition(federation, folder.path / "partition.png")
        if start == config.rounds and folder.summary_file.exists():
            summary = tracking.read_summary(folder.summary_file)
            if summary.get("prediction", {}) == _prediction_settings(config):
                progress.note("this run is complete already")
                progress.finish(summary, files)
                return summary
        programs = _Programs(method, key, federation)
        while start < config.rounds:
            rounds = min(config.eval_every - start % config.eval_every, config.rounds - start)
            row, state = programs.advance(state, rounds, seconds)
            start = row["round"]
            log.append(row)
            progress.update(start, row)
            due = config.checkpoint_every * config.eval_every
            if start == config.rounds or (due and start % due == 0):
                checkpoints.save(start, state, seconds)
        outcomes: list[prediction.Outcome] = []
        for outcome in prediction.predict(experiment, method, state, key, federation, progress.note):
            outcomes.append(outcome)
            table = prediction.predictions_table(experiment, federation, outcomes)
            tracking.write_atomically(folder.predictions_csv, table)
            tracking.write_atomically(folder.clients_csv, prediction.clients_table(experiment, federation, outcomes))
        rows = log.rows()
        if rows:
            tracking.plot_curves(rows, folder.curves_file, title=f"{config.method.name} on {config.data.name}")
        summary = _summarize(experiment, rows, seconds, prediction.summary_of(outcomes))
        tracking.write_summary(folder.summary_file, summary)
        progress.finish(summary, files)
    return summary


def _prediction_settings(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """What decides the predictions of a trained network; nothing if none are asked for."""
    return config.prediction.to_dict() if config.prediction.predictors else {}


class _Programs:
    """The compiled rounds and evaluation of a run, compiled when first needed and timed apart from running."""

    def __init__(self, method: Method, key: Key[Array, ""], federation: data.FederatedData):
        self._method, self._arguments = method, (key, federation)
        self._compiled: dict[int, Callable[..., tuple[ServerState, Metrics]]] = {}

    def advance(self, state: ServerState, rounds: int, seconds: dict[str, float]) -> tuple[dict[str, Any], ServerState]:
        """Runs rounds and an evaluation; adds the time to `seconds`. Returns (metric row, new state)."""
        if rounds not in self._compiled:
            begin = time.perf_counter()
            # The new state takes the place of the old one in memory.
            block = jax.jit(partial(_block, self._method, rounds=rounds), donate_argnums=0)
            with configs.naming("method"):  # a method checks some of its settings only when it is traced
                lowered = block.lower(state, *self._arguments)
            with _explaining_memory():
                self._compiled[rounds] = lowered.compile()
            seconds["compile_seconds"] += time.perf_counter() - begin
        begin = time.perf_counter()
        with _explaining_memory():
            state, metrics = self._compiled[rounds](state, *self._arguments)
            row = {name: np.asarray(value).item() for name, value in jax.device_get(metrics).items()}
        elapsed = time.perf_counter() - begin
        seconds["train_seconds"] += elapsed
        row["seconds"] = elapsed
        row["client_updates_per_second"] = row["clients"] / elapsed
        return row, state


@contextlib.contextmanager
def _explaining_memory() -> Iterator[None]:
    """Says which settings to lower where a device has not enough memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ConfigError(
            "the device has not enough memory for a round. Lower config.federated.chunk_size (clients at once; with "
            "placement 'chunked' or 'lanes'), config.optimizer.batch_size or config.federated.cohort_size, try "
            "--config.precision=bf16, or share the cohort with --config.federated.devices. "
            f"({str(error).splitlines()[0]})"
        ) from error


def _block(
    method: Method, state: ServerState, key: Key[Array, ""], federation: data.FederatedData, rounds: int
) -> tuple[ServerState, Metrics]:
    """Rounds and the evaluation after them: the unit that is compiled, logged and checkpointed."""
    state, infos = run_rounds(method, key, state, federation, rounds)
    return state, {**infos, **federated.evaluate(method, state, federation)}


def _summarize(
    experiment: Experiment,
    rows: list[dict[str, Any]],
    seconds: Mapping[str, float],
    predictions: list[dict[str, Any]],
) -> dict[str, Any]:
    config, last = experiment.config, rows[-1] if rows else {}
    totals = {name: sum(int(row[name]) for row in rows) for name in TOTALS}
    extra: dict[str, Any] = {"dropped_clients": totals["dropped_clients"], "local_steps": totals["local_steps"]}
    for name in ("test_balanced_accuracy", "test_loss", "pseudo_label_accuracy", "pseudo_label_coverage"):
        if name in last:
            extra[name] = last[name]
    if predictions:
        extra["predictions"] = predictions
        extra["prediction"] = _prediction_settings(config)
    if "validation_accuracy" in last:
        warmup = min(config.method.get("warmup_rounds", 0), last["round"])  # from the model of stage 1 on
        candidates = [row for row in rows if row["round"] >= warmup]
        chosen = max(candidates, key=lambda row: row["validation_accuracy"])
        extra["selected_round"] = chosen["round"]
        extra["selected_test_accuracy"] = chosen["test_accuracy"]
    return tracking.summarize(
        rows,
        method=config.method.name,
        dataset=config.data.name,
        seed=config.seed,
        rounds=config.rounds,
        client_updates=totals["clients"],
        examples=totals["examples"],
        bytes_up=totals["bytes_up"],
        bytes_down=totals["bytes_down"],
        extra=extra,
        **seconds,
    )
