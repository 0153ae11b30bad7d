"""The end of a run: predictions, scores and the summary."""

import shlex
from pathlib import Path
from typing import Any

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.folder.files import encode_json
from fedjax_ssl.prediction import one_shot
from fedjax_ssl.runs import advice, divergence, plots, prediction_files
from fedjax_ssl.runs.active_run import Run
from fedjax_ssl.runs.processes import share_out
from fedjax_ssl.runs.program import on_one_device
from fedjax_ssl.runs.scores import score_run
from fedjax_ssl.runs.summary import summarize, what_was_predicted


def finish(run: Run) -> None:
    """Make the predictions, score the model and write the summary."""
    config = run.config
    built = run.built
    last = run.state
    round, chosen = _chosen(run)
    rows = [] if run.folder is None else run.folder.rows()
    outcomes = _predict(run)
    summary = summarize(config, rows, run.seconds, prediction_files.summary_of(outcomes))
    summary |= divergence.ended(last, rows, config)
    files = run.files
    # On one of its devices; the other processes wait for the summary.
    if config.rounds and run.folder is not None:
        scored = score_run(run.program, round, chosen, run.names)
        for line in scored.notes:
            run.progress.note(line)
        for name, content in scored.files.items():
            files[name.removesuffix(".csv").replace("_", " ")] = run.path / name
            run.folder.write(name, content)
        run.describe(scored.temperature)
        if run.of_clients_by_global:
            files["clients' own models"] = run.path / "personal_accuracy.csv"
            both = [
                {"client": name, "global": common, "own": run.of_clients[name]}
                for name, common in run.of_clients_by_global.items()
            ]
            table = prediction_files.as_csv(both, "%.6f")
            run.folder.write("personal_accuracy.csv", table)
        evaluating = min(scored.seconds * len(rows), summary["train_seconds"])
        summary |= {**scored.fields, "evaluate_seconds": evaluating}
    if run.privacy is not None and rows:
        summary |= run.privacy.summary(summary["rounds"])
    if "selected_round" in summary:
        examples = built.federation.summary()["validation_examples"]
        summary["validation_examples"] = examples
    if config.data.left_out_client is not None:
        summary["left_out_client"] = run.names[built.federation.num_clients]
    summary |= {
        "data": dict(built.experiment.known_by),
        "split": run.program.split,
        **data.what_is_compared(built.experiment.as_read, built.federation),
    }
    if (apart := advice.apart_in(built)) is not None:
        summary["sites_apart"] = apart
    if run.folder is not None:
        if run.pictures and len(rows) >= plots.FEWEST:
            plots.draw_partition(run)
        elif run.pictures:
            run.progress.note(
                f"no {plots.FILE} after fewer than {plots.FEWEST} evaluations: the same command "
                "again draws it"
            )
        run.folder.write("summary.json", encode_json(summary, indent=2) + "\n")
    run.writers.finish(summary)
    # The other processes get the summary once the files exist, so none ends before the folder is
    # complete.
    run.summary = run.team.values_from_first(summary)
    _tell_end(run, files)


def summary_of_before(run: Run) -> dict[str, Any] | None:
    """Return the summary of a run that is already complete, and say so; None for other runs."""
    found = None if run.folder is None else run.folder.summary()
    summary: dict[str, Any] | None = run.team.values_from_first(found)
    if summary is None or summary.get("prediction", {}) != what_was_predicted(run.config):
        return None
    # A callback may have stopped it.
    if not (run.over or summary.get("stopped_early")):
        return None
    run.progress.note("this run is complete already")
    if run.config.profile:
        run.progress.note("nothing to profile: the run is finished")
    run.progress.finish(summary, {**_files_that_are_there(run), **_curves(run)})
    return summary


def _curves(run: Run) -> dict[str, str]:
    """Print the command that draws the curves of a run."""
    return {"curves": shlex.join(["fedjax-ssl", "report", str(run.path)])}


def _files_that_are_there(run: Run) -> dict[str, Path]:
    """Return the files of a complete run; note missing files, and draw the partition if it is
    missing.
    """
    if run.folder is None:
        return {}
    if run.pictures:
        plots.draw_partition(run)
    gone = [path.name for path in run.files.values() if not path.exists()]
    if gone:
        run.progress.note(f"gone from {run.path}: {', '.join(gone)}")
    return {what: path for what, path in run.files.items() if path.exists()}


def _chosen(run: Run) -> tuple[int, Any]:
    """Return round and state of the chosen model, on one device. Predictions use the last model
    unless `config.early_stopping` asks for the best.
    """
    here = on_one_device(run.state)
    best = None if run.folder is None else run.folder.restore_best(run.template)
    round, chosen, _ = best or (run.round, here, {})
    if run.config.early_stopping.patience is not None:
        run.state = share_out(run.team.from_first(chosen), run.built.execution.mesh)
    return round, chosen


def _predict(run: Run) -> list[one_shot.Predicted]:
    """Make all predictions, and write the tables after each."""
    built = run.built
    natural = run.config.partition.name == "natural"
    key = run.inputs.key
    federation = run.inputs.federation
    outcomes: list[one_shot.Predicted] = []
    for outcome in one_shot.predict(
        run.config,
        built.method,
        run.state,
        key,
        federation,
        built.execution.mesh,
        run.progress.note,
        built.experiment.dataset.views is not None,
    ):
        outcomes.append(outcome)
        if run.folder is not None:
            known = (built.experiment.dataset, built.federation, outcomes, natural)
            run.folder.write("predictions.csv", prediction_files.predictions_csv(*known))
            run.folder.write("predictions_by_client.csv", prediction_files.clients_csv(*known))
        run.team.feed()
    return outcomes


def _tell_end(run: Run, files: dict[str, Path]) -> None:
    """Print the result."""
    assert run.summary is not None
    run.progress.finish(run.summary, {**files, **_curves(run)})
    if run.of_clients:
        held_out = {*run.names[run.built.federation.num_clients :]}
        named = {
            f"{name} (held out)" if name in held_out else name: value
            for name, value in run.of_clients.items()
        }
        run.progress.clients(named, run.path / "client_accuracy.csv")
    number = configs.saved_round(run.config)
    if number and number > run.round:
        run.progress.note(
            f"no clients' models are kept: the run stopped after round {run.round}, "
            f"save_clients={run.config.save_clients} names round {number}"
        )
