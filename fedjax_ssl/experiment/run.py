"""A run with its folder: rounds, checkpoints, predictions, summary."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl import data, distributed, federated, models, tracking
from fedjax_ssl.distributed import Team
from fedjax_ssl.experiment import Experiment, build_method, device_mesh, federate, prediction, prediction_settings
from fedjax_ssl.experiment.build import load_resolved
from fedjax_ssl.experiment.fit import check_labels, check_weighting, note_missing_labels
from fedjax_ssl.experiment.prediction_csv import clients_csv, predictions_csv
from fedjax_ssl.experiment.rounds import TOTALS, Programs
from fedjax_ssl.methods.parts.cost_model import COSTS

# Fields that change how a run is watched, where it finds its data or what is done with the trained network, but not
# the network.
UNCOMPARED = ("checkpoint_every", "data.root", "data.download", "data.timeout", "prediction", "distributed")


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
    del common["distributed"]  # this and how a machine finds its data is its own
    for own in ("root", "download", "timeout"):
        del common["data"][own]
    team.check_same("config", repr(common), "Give every process the same command and the same config file.")
    # Sums that are not exact depend on the number of devices.
    ignored = UNCOMPARED if resolved.federated.reduce == "fast" else (*UNCOMPARED, "federated.devices")
    with (
        team.watched(),
        tracking.Record(workdir, resolved.to_dict(), ignore=ignored)
        if team.writes
        else tracking.NoRecord(workdir) as record,
    ):
        return _run_in(record, load_resolved(resolved), team)


def _run_in(record: tracking.Record | tracking.NoRecord, experiment: Experiment, team: Team) -> dict[str, Any]:
    config, key = experiment.config, jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    team.check_same("data", federation, "Give every machine the same files, the same hardware and the same versions.")
    asked = prediction_settings(config)
    prediction.check(asked, federation)
    with configs.naming("data, config.partition or config.supervision"):
        data.validate(federation, truth_required=not asked.predictors)
    placements: list[str] = []

    def report(choice: federated.Choice) -> None:
        line = describe_placement(choice, jax.default_backend())
        if line not in placements:  # a round is traced several times, but only below, where `progress` is there
            placements.append(line)
            progress.note(line)

    method = build_method(experiment, federation, report=report)
    # Without training it is labels that are predicted from.
    learner = method
    if not config.rounds:
        learner = method._replace(needs=("labels",), needs_all=False, trains_unlabelled=False, check=None)
    check_labels(config.supervision.name, config.method.name, learner, federation)
    note_missing_labels(config.supervision.name, config.supervision.labels, federation)
    check_weighting(config.federated.weighting, learner, federation)
    template = jax.eval_shape(method.init, key, federation)

    nothing: dict[str, float] = {"compile_seconds": 0.0, "train_seconds": 0.0}
    restored = record.restore(template) or (0, jax.jit(method.init)(key, federation), nothing)
    start, state, seconds = team.from_first(restored)
    mesh = device_mesh(config.federated.devices, config.federated.reduce)
    team.connect(mesh)
    state, placed_key, placed = distributed.share_out((state, key, federation), mesh)

    files = record.files(trained=bool(config.rounds), predicted=bool(asked.predictors))
    with record.progress(config.rounds, start) as progress:
        progress.start(
            method=config.method.name + " (no federation: scores are means over the clients' models)" * method.alone,
            model=config.model.name,
            num_parameters=models.count_parameters(template.params),
            dataset=config.data.name,
            counts={name: count for name, count in federation.summary().items() if count},
            device=tracking.device_description(),
            workdir=record.path,
        )
        progress.note(experiment.standardization)
        if start == 0:
            natural = config.partition.name == "natural"
            names = data.client_names(experiment.dataset, federation, natural)[: federation.num_clients]
            table = data.report(federation, experiment.dataset.class_names, names, max_rows=federation.num_clients)
            record.describe_data(table + "\n")
        if start == config.rounds:
            summary = team.values_from_first(record.summary())
            if summary is not None and summary.get("prediction", {}) == _what_was_predicted(config):
                progress.note("this run is complete already")
                progress.finish(summary, files)
                return summary
        draw_data = partial(record.draw_data, partial(data.plot_partition, federation))
        programs = Programs(method, placed_key, placed, mesh)
        while start < config.rounds:
            rounds = min(config.eval_every - start % config.eval_every, config.rounds - start)
            row, state = programs.advance(state, rounds, seconds)
            start = row["round"]
            record.append(row)
            progress.update(start, row)
            if not row["local_steps"]:
                progress.note(f"nobody trained in the last {rounds} rounds: {_why(row)}")
            team.feed()
            due = config.checkpoint_every * config.eval_every
            stop = start < config.rounds and team.preempted(-(-start // config.eval_every))
            if stop or start == config.rounds or (due and start % due == 0):
                record.save(start, state, seconds)
            if stop:
                raise distributed.Preempted
            draw_data()  # not before the first numbers, which it would delay
        draw_data()
        outcomes: list[prediction.Predicted] = []
        natural = config.partition.name == "natural"
        for outcome in prediction.predict(asked, method, state, placed_key, placed, mesh, progress.note):
            outcomes.append(outcome)
            record.write_predictions(
                predictions_csv(experiment.dataset, federation, outcomes, natural),
                clients_csv(experiment.dataset, federation, outcomes, natural),
            )
            team.feed()
        rows = record.rows()
        summary = _summarize(config, rows, seconds, prediction.summary_of(outcomes))
        record.finish(rows, summary, title=f"{config.method.name} on {config.data.name}")
        # The others get the summary when the files are there: nobody is at the end before the record is whole.
        summary = team.values_from_first(summary)
        progress.finish(summary, files)
    return summary


def _why(row: dict[str, Any]) -> str:
    """Why a block of rounds has no local step."""
    if dropped := int(row["dropped_clients"]):
        return f"what {dropped} clients returned was not finite, and no other had anything to learn from"
    return "no client had anything to learn from"


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


def _what_was_predicted(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """What decides the predictions of a trained network; nothing if none are asked for."""
    return config.prediction.to_dict() if config.prediction.predictors else {}


def _summarize(
    config: ml_collections.ConfigDict,
    rows: list[dict[str, Any]],
    seconds: Mapping[str, float],
    predictions: list[dict[str, Any]],
) -> dict[str, Any]:
    last = rows[-1] if rows else {}
    totals = {name: sum(int(row[name]) for row in rows) for name in TOTALS}
    extra: dict[str, Any] = {"dropped_clients": totals["dropped_clients"], "local_steps": totals["local_steps"]}
    for name in ("test_balanced_accuracy", "test_loss", "pseudo_label_accuracy", "pseudo_label_coverage", *COSTS):
        if name in last:
            extra[name] = last[name]
    if predictions:
        extra["predictions"] = predictions
        extra["prediction"] = _what_was_predicted(config)
    if "validation_accuracy" in last:
        # From the model of stage 1 on, or later.
        first = min(max(config.method.get("warmup_rounds", 0), config.select_from), last["round"])
        candidates = [row for row in rows if row["round"] >= first]
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
