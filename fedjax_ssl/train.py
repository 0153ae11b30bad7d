"""From a config to a trained model: `make_train` as one pure function, `run` with a run folder around it."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, distributed, federated, methods, models, tracking
from fedjax_ssl.config import ConfigError
from fedjax_ssl.distributed import Team
from fedjax_ssl.experiment import Experiment, build_method, device_mesh, federate, load_experiment, prediction
from fedjax_ssl.experiment.weighting import check_weighting
from fedjax_ssl.federated import Method, ServerState
from fedjax_ssl.federated.method import Metrics

PyTree = Any
TOTALS = ("bytes_down", "bytes_up", "local_steps", "examples", "clients", "dropped_clients")


def make_train(
    config: ml_collections.ConfigDict,
) -> Callable[..., tuple[ServerState, Metrics]]:
    """The whole experiment as one pure function.

    `train(key)` draws the partition, the labels kept, the initial network and everything else from `key`, runs all
    rounds and evaluates every `config.eval_every` rounds. `jax.jit(over_seeds(train))(keys)`, or with `jax.vmap` in
    place of `over_seeds`, is a seed sweep in one compiled program; `train(key, {"optimizer.learning_rate": rate})`
    replaces settings that enter as numbers, so it can be vmapped over them too.

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


def over_seeds(train: Callable[..., PyTree], mesh: Mesh | None = None) -> Callable[..., PyTree]:
    """One program for many runs: `over_seeds(train)(keys)`, with a leading axis on every result.

    On accelerators the runs are vectorized (`jax.vmap`), which fills the device. On a CPU they follow one another in
    the program (`jax.lax.map`): there the work is the limit, and vectorized runs take longer than the same runs in turn
    (docs/benchmarks.md, W8).

    Args:
        train: what `make_train` returns, or another function of a key (and of further arrays with the same leading
            axis).
        mesh: devices that share the runs, with axes ("seeds", "clients"): seeds are dealt in equal blocks along the
            first axis, and the devices along the second one share each cohort of their seeds. `train` comes from a
            config whose `federated.devices` is the length of the second axis. None: one run's devices, as the config
            says.

    Raises:
        ValueError: the mesh has other axes, or its seeds do not divide the keys.
    """

    def here(*arguments: PyTree) -> PyTree:
        if jax.default_backend() != "cpu":
            return jax.vmap(train, axis_name=federated.VECTORIZED_RUNS)(*arguments)
        return jax.lax.map(lambda one: train(*one), arguments)

    if mesh is None:
        return here
    if mesh.axis_names != ("seeds", "clients"):
        raise ValueError(f"the mesh has axes {mesh.axis_names}; a sweep over seeds takes ('seeds', 'clients')")
    groups, share = mesh.shape["seeds"], PartitionSpec("seeds")

    def on_devices(*arguments: PyTree) -> PyTree:
        count = jax.tree.leaves(arguments)[0].shape[0]
        if count % groups:
            raise ValueError(
                f"there are {count} seeds for {groups} groups of devices along the mesh's axis 'seeds'; their number "
                f"must be a multiple of {groups}"
            )
        # Local training starts from the same values on all devices of a seed, which are not marked as differing.
        return jax.shard_map(here, mesh=mesh, in_specs=share, out_specs=share, check_vma=False)(*arguments)

    return on_devices


def run_rounds(
    method: Method, key: Key[Array, ""], state: ServerState, federation: data.FederatedData, rounds: int
) -> tuple[ServerState, Metrics]:
    """Runs rounds in one compiled loop.

    Returns:
        (state, metrics): "round" is the number of rounds done; counts and bytes are sums, everything else is the mean
        over the rounds in which it was defined.
    """
    state, infos = jax.lax.scan(lambda s, _: method.round(key, s, federation), state, length=rounds)

    def summed(name: str, values: PyTree) -> PyTree:
        if isinstance(values, federated.Count):
            return values.total()
        return jnp.sum(values) if name in TOTALS else jnp.nanmean(values)

    return state, {"round": state.round, **{name: summed(name, values) for name, values in infos.items()}}


# Fields that change how a run is watched, where it finds its data or what is done with the trained network, but not
# the network.
UNCOMPARED = ("checkpoint_every", "data.root", "data.download", "prediction", "distributed")


def run(config: ml_collections.ConfigDict, workdir: str | Path, team: Team | None = None) -> dict[str, Any]:
    """Runs an experiment in a run folder, or goes on with the one that is there.

    The same config on the same folder resumes from the last checkpoint and ends in the same numbers, bit for bit.

    Args:
        config: as a config file returns it.
        workdir: the run folder; see `fedjax_ssl.tracking.RunFolder`. Of several processes, only process 0 uses it.
        team: from `fedjax_ssl.distributed.start`, where several processes train one federation: all of them call this.

    Returns:
        What `summary.json` holds.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
        ConfigMismatch: the folder holds a run with another config.
        CheckpointError: the folder's checkpoints cannot be used.
        Preempted: a process of several was asked to end; the checkpoint is saved.
    """
    team = team or Team()
    resolved = configs.resolve(config)
    common = resolved.to_dict()
    del common["distributed"], common["data"]["root"], common["data"]["download"]  # these are each machine's own
    team.check_same("config", repr(common), "Give every process the same command and the same config file.")
    # Sums that are not exact depend on the number of devices.
    ignored = UNCOMPARED if resolved.federated.reduce == "fast" else (*UNCOMPARED, "federated.devices")
    with (
        team.watched(),
        tracking.Record(workdir, resolved.to_dict(), ignore=ignored)
        if team.writes
        else tracking.NoRecord(workdir) as record,
    ):
        return _run_in(record, load_experiment(resolved), team)


def _run_in(record: tracking.Record | tracking.NoRecord, experiment: Experiment, team: Team) -> dict[str, Any]:
    config, key = experiment.config, jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    team.check_same("data", federation, "Give every machine the same files, the same hardware and the same versions.")
    prediction.check(config, federation)
    with configs.naming("data, config.partition or config.supervision"):
        data.validate(federation, truth_required=not config.prediction.predictors)
    placements: list[str] = []

    def report(choice: federated.Choice) -> None:
        line = describe_placement(choice, jax.default_backend())
        if line not in placements:  # a round is traced several times, but only below, where `progress` is there
            placements.append(line)
            progress.note(line)

    method = build_method(experiment, federation, report=report)
    # Without training it is labels that are predicted from.
    learner = method if config.rounds else method._replace(needs=("labels",), needs_all=False, trains_unlabelled=False)
    _check_labels(config, learner, federation)
    check_weighting(config.federated.weighting, learner, federation)
    template = jax.eval_shape(method.init, key, federation)

    nothing: dict[str, float] = {"compile_seconds": 0.0, "train_seconds": 0.0}
    restored = record.restore(template) or (0, jax.jit(method.init)(key, federation), nothing)
    start, state, seconds = team.from_first(restored)
    mesh = device_mesh(config)
    team.connect(mesh)
    state, placed_key, placed = distributed.share_out((state, key, federation), mesh)

    files = record.files(trained=bool(config.rounds), predicted=bool(config.prediction.predictors))
    with record.progress(config.rounds, start) as progress:
        progress.start(
            method=config.method.name,
            model=config.model.name,
            num_parameters=models.count_parameters(template.params),
            dataset=config.data.name,
            counts={name: count for name, count in federation.summary().items() if count},
            device=tracking.device_description(),
            workdir=record.path,
        )
        progress.note(experiment.standardization)
        if start == 0:
            table = data.report(federation, experiment.dataset.class_names, max_rows=federation.num_clients)
            record.describe_data(table + "\n")
        draw_data = partial(record.draw_data, partial(data.plot_partition, federation))
        if start == config.rounds:
            summary = team.values_from_first(record.summary())
            if summary is not None and summary.get("prediction", {}) == _prediction_settings(config):
                progress.note("this run is complete already")
                progress.finish(summary, files)
                return summary
        programs = _Programs(method, placed_key, placed, mesh)
        while start < config.rounds:
            rounds = min(config.eval_every - start % config.eval_every, config.rounds - start)
            row, state = programs.advance(state, rounds, seconds)
            start = row["round"]
            record.append(row)
            progress.update(start, row)
            if not row["local_steps"]:
                progress.note(f"nobody trained in the last {rounds} rounds: no client had anything to learn from")
            team.feed()
            due = config.checkpoint_every * config.eval_every
            stop = start < config.rounds and team.preempted(-(-start // config.eval_every))
            if stop or start == config.rounds or (due and start % due == 0):
                record.save(start, state, seconds)
            if stop:
                raise distributed.Preempted
            draw_data()  # not before the first numbers, which it would delay
        draw_data()
        outcomes: list[prediction.Outcome] = []
        for outcome in prediction.predict(experiment, method, state, placed_key, placed, progress.note):
            outcomes.append(outcome)
            record.write_predictions(
                prediction.predictions_table(experiment, federation, outcomes),
                prediction.clients_table(experiment, federation, outcomes),
            )
            team.feed()
        rows = record.rows()
        summary = _summarize(experiment, rows, seconds, prediction.summary_of(outcomes))
        record.finish(rows, summary, title=f"{config.method.name} on {config.data.name}")
        # The others get the summary when the files are there: nobody is at the end before the record is whole.
        summary = team.values_from_first(summary)
        progress.finish(summary, files)
    return summary


def _check_labels(config: ml_collections.ConfigDict, method: Method, federation: data.FederatedData) -> None:
    """Refuses a federation without what the method learns from; says what its weak labels leave open."""
    there, needs = federation.kinds(), method.needs
    if not (set(needs) <= set(there) if method.needs_all else set(there) & set(needs)):
        words = (" and " if method.needs_all else " or ").join(_KINDS[kind] for kind in needs)
        raise ConfigError(
            f"method {config.method.name!r} learns from {words}; with "
            f"config.supervision.name={config.supervision.name!r} this federation has "
            f"{' and '.join(_KINDS[kind] for kind in there) or 'no label of any kind'}"
        )
    if {"coarse", "sets"} & set(needs):
        with configs.naming("supervision"):
            for warning in methods.check_channels(federation):
                warnings.warn(warning, configs.ConfigNote, stacklevel=2)


_KINDS = {
    "labels": "class labels at clients",
    "server": "class labels at the server",
    "coarse": "coarse labels",
    "sets": "sets with known class shares",
}


def describe_placement(choice: federated.Choice, backend: str) -> str:
    """How a cohort's clients run, in words, for example "clients at once: 48 in lanes, about 210 MB each of 60 GB".

    Args:
        choice: from the engine.
        backend: what JAX computes on.
    """
    if choice.placement == "sequential":
        return "clients one after another" + (" (CPU)" if backend == "cpu" else "")
    how = {"lanes": " in lanes", "chunked": " in chunks", "vmap": ", all of them"}[choice.placement]
    line = f"clients at once: {choice.clients_at_once}{how}"
    if choice.bytes_per_client is None or choice.limit is None:
        return line
    each, limit = map(tracking.bytes_in_words, (choice.bytes_per_client, choice.limit))
    return f"{line}, about {each} each of {limit}"


def _prediction_settings(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """What decides the predictions of a trained network; nothing if none are asked for."""
    return config.prediction.to_dict() if config.prediction.predictors else {}


class _Programs:
    """The compiled rounds and evaluation of a run, compiled when first needed and timed apart from running."""

    def __init__(self, method: Method, key: Key[Array, ""], federation: data.FederatedData, mesh: Mesh | None = None):
        self._method, self._arguments = method, (key, federation)
        # Whole on every device: otherwise a process could not read what lies on those of another one.
        everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._placed: dict[str, Any] = {} if mesh is None else {"in_shardings": everywhere, "out_shardings": everywhere}
        self._compiled: dict[int, Callable[..., tuple[ServerState, Metrics]]] = {}

    def advance(self, state: ServerState, rounds: int, seconds: dict[str, float]) -> tuple[dict[str, Any], ServerState]:
        """Runs rounds and an evaluation; adds the time to `seconds`. Returns (metric row, new state)."""
        if rounds not in self._compiled:
            begin = time.perf_counter()
            self._compiled[rounds] = compile_block(self._method, state, *self._arguments, rounds, **self._placed)
            seconds["compile_seconds"] += time.perf_counter() - begin
        begin = time.perf_counter()
        with _explaining_memory():
            state, metrics = self._compiled[rounds](state, *self._arguments)
            row = {name: value.item() for name, value in federated.to_numbers(jax.device_get(metrics)).items()}
        elapsed = time.perf_counter() - begin
        seconds["train_seconds"] += elapsed
        row["seconds"] = elapsed
        row["client_updates_per_second"] = row["clients"] / elapsed
        return row, state


def compile_block(
    method: Method, state: ServerState, key: Key[Array, ""], federation: data.FederatedData, rounds: int, **placed: Any
) -> Callable[..., tuple[ServerState, Metrics]]:
    """Compiles rounds and the evaluation after them: the unit that a run executes, logs and checkpoints.

    Args:
        method: what is run.
        state: server state, or its shapes.
        key: the run's key.
        federation: clients and test examples.
        rounds: how many.
        **placed: arguments of `jax.jit`: where what goes in and what comes out lies.

    Returns:
        (state, key, federation) -> (new state, metric row); the new state takes the place of the old one in memory.

    Raises:
        ConfigError: a setting that a method checks only when it is traced, or not enough memory.
    """
    block = jax.jit(partial(_block, method, rounds=rounds), donate_argnums=0, **placed)
    with configs.naming("method"):
        # Traced without their places: what local training reads of them would clash with the places that
        # `shard_map` gives to the clients.
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, key, federation))
        lowered = block.lower(*shapes)
    with _explaining_memory():
        return lowered.compile()


@contextlib.contextmanager
def _explaining_memory() -> Iterator[None]:
    """Says which settings to lower where a device has not enough memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ConfigError(
            "the device has not enough memory for a round. Lower config.federated.chunk_size (clients at once, which "
            "the run chooses where it is not given; with placement 'chunked' or 'lanes'), config.optimizer.batch_size "
            "or config.federated.cohort_size, try --config.precision=bf16, or share the cohort with "
            f"--config.federated.devices. ({str(error).splitlines()[0]})"
        ) from error


def _block(
    method: Method, state: ServerState, key: Key[Array, ""], federation: data.FederatedData, rounds: int
) -> tuple[ServerState, Metrics]:
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
