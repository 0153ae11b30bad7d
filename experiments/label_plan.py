"""Accuracy with planned and with random labels, in the same federations.

    python experiments/label_plan.py --run digits                    # a table, stored
    python experiments/label_plan.py --run features --data FOLDER    # whose data are elsewhere
    python experiments/label_plan.py --run digits --learners fedavg

A row is a way of choosing labels. One-shot XCLP runs in this process: a seed's graph is built once
for all rows. The other learners are a `fedjax-ssl sweep` for each row, over numbers of labels and
five seeds, which goes on from its folder. Test examples are held out before labels are chosen, so
that no plan sees them, and a seed has the same test examples and clients in all rows. Results are
kept in experiments/label_plan/TABLE.json, of which results_page.py writes the tables of
docs/results.md.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas
from jaxtyping import Array

from fedjax_ssl import config as configs
from fedjax_ssl import graph
from fedjax_ssl.data.federation.planned import compared
from fedjax_ssl.folder.environment import device_description, git_commit, versions
from fedjax_ssl.folder.files import encode_json, write_atomically
from fedjax_ssl.folder.stored_run import StoredRun, find_runs, read_run
from fedjax_ssl.graph.codes import has_angle
from fedjax_ssl.graph.label_plan import Pool, choose
from fedjax_ssl.prediction import points_of
from fedjax_ssl.report.exports import markdown_table
from fedjax_ssl.report.numbers import around_text, compare
from fedjax_ssl.runs.build import federate, load_experiment

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "experiments" / "label_plan"
RUNS = Path("runs/label_plan")
PER_CLASS = (1, 2, 4, 10)  # labels of a class, on average
RANDOM = "random"
CHOICES: Mapping[str, Mapping[str, str]] = {
    RANDOM: {"supervision.name": "planned", "supervision.strategy": "random"},
    "random, equal by class (needs the classes)": {"supervision.name": "total_per_class"},
    "plan-labels": {"supervision.name": "planned"},
    "TypiClust": {"supervision.name": "planned", "supervision.strategy": "typiclust"},
    "k-center": {"supervision.name": "planned", "supervision.strategy": "coreset"},
}
SEEDS = range(5)
ONE_SHOT = "XCLP, one shot"
BITS = 4096
ALPHA = 0.9
LEARNERS = {"xclp": ONE_SHOT, "fedavg": "FedAvg", "fixmatch": "FixMatch"}


class Table(NamedTuple):
    """A federation."""

    title: str
    text: str  # what a reader has to know
    config: str  # with {method}
    classes: int
    settings: Mapping[str, str]
    neighbors: int = 10  # of one-shot XCLP
    learners: Sequence[str] = ("xclp", "fedavg", "fixmatch")
    place: str = ""  # what stands for the user's --data in commands


FEATURES = {
    "data.client_test_fraction": "0.2",
    "data.validation_fraction": "0",
    "partition.num_clients": "100",
    "federated.cohort_size": "20",
    "rounds": "60",
    "eval_every": "60",
    "optimizer.local_epochs": "1",
    "optimizer.local_steps": "10",
    "optimizer.learning_rate": "0.03",
    "model.start": "zero",
}
FEATURES_TEXT = (
    "8,000 images of CIFAR-10 (JPEG) at 100 clients, a fifth of each client's for testing; "
    "features and heads of [the study below](#pre-trained-features), with one weak and one "
    "strong view."
)
TABLES = {
    "digits": Table(
        "Digits by writer",
        "11 writers train, 3 others are the test; a network of one hidden layer, 40 rounds.",
        "digits:{method},per_client",
        10,
        {"rounds": "40", "eval_every": "40"},
    ),
    "features": Table(
        "CIFAR-10 on frozen features, iid",
        FEATURES_TEXT,
        "features:{method},given",
        10,
        {**FEATURES, "partition.name": "iid"},
        20,
        place="FOLDER",
    ),
    "features-dirichlet": Table(
        "CIFAR-10 on frozen features, Dirichlet 0.1",
        "As above.",
        "features:{method},given",
        10,
        {**FEATURES, "partition.name": "dirichlet", "partition.alpha": "0.1"},
        20,
        place="FOLDER",
    ),
    "heart": Table(
        "Fed-Heart-Disease",
        "Four hospitals, 386 patients who train and 254 who are tested; softmax regression, 60 "
        "rounds. FixMatch has no views of such patients.",
        "fed_heart_disease:{method},10",
        2,
        {},
        10,
        ("xclp", "fedavg"),
        "FOLDER",
    ),
    "mnist": Table(
        "MNIST",
        "The first 3,000 training images at 20 iid clients, 500 of them for testing; a network of "
        "one hidden layer, 40 rounds.",
        "npz:{method},given",
        10,
        {
            "partition.name": "iid",
            "partition.num_clients": "20",
            "data.client_test_fraction": "0.1667",
            "rounds": "40",
            "eval_every": "40",
            "model.name": "mlp",
        },
        place="mnist3000.npz",
    ),
}


def command(name: str, choice: str, method: str, data: str) -> list[str]:
    """Return the sweep of a row, without the program."""
    table = TABLES[name]
    chosen = CHOICES[choice]
    each = 1 if chosen["supervision.name"] == "total_per_class" else table.classes
    counts = ",".join(str(number * each) for number in PER_CLASS)
    settings = {**table.settings, **chosen, "supervision.labels": counts}
    if data:
        settings["data.path"] = data
    words = ["sweep", table.config.format(method=method), "--seeds", "5"]
    for field, value in settings.items():
        words += ["--set", f"{field}={value}"]
    short = choice.partition(",")[0] + "_equal" * ("equal" in choice)
    return [*words, "--workdir", str(RUNS / name / f"{short}_{method}".replace("-", "_"))]


def run(name: str, choice: str, method: str, data: str) -> None:
    """Run a row of a learner that trains, and store what came out."""
    words = command(name, choice, method, data)
    program = [sys.executable, "-m", "fedjax_ssl.cli", *words, "--workers", "1", "--quiet"]
    if subprocess.run(program, check=False).returncode:
        print(f"{name}, {choice}, {method}: did not run")
        return
    runs = [one for one in map(read_run, find_runs([words[-1]])) if one.finished]
    shown = shlex.join(["fedjax-ssl", *command(name, choice, method, TABLES[name].place)])
    rows = {choice: accuracies(runs, TABLES[name].classes)}
    store(name, LEARNERS[method], rows, shown, commit_of(runs))


def commit_of(runs: Sequence[StoredRun]) -> str | None:
    """Return the commits that runs were made at: a sweep goes on from its folder."""
    summaries = [one.summary for one in runs if one.summary is not None]
    found = {str(summary["versions"].get("git_commit")) for summary in summaries}
    return ", ".join(sorted(found)) or None


def store(
    name: str, learner: str, rows: Mapping[str, Any], made_by: str, commit: str | None = None
) -> None:
    """Add rows of accuracies to the stored results of a table; made at today's commit by default."""
    stored = load(name)
    for choice, accuracy in rows.items():
        stored.setdefault(learner, {})[choice] = {
            "accuracy": accuracy,
            "command": made_by,
            "device": device_description(),
            "commit": commit or git_commit(),
            "versions": versions(("jax",)),
        }
    STORED.mkdir(exist_ok=True)
    write_atomically(path_of(name), encode_json(stored, indent=1) + "\n")
    print(f"{name}, {learner}: stored {', '.join(rows)}", flush=True)


def one_shot(name: str, choices: Sequence[str], data: str) -> None:
    """Label test examples by one graph of all clients, for every row, and store what came out."""
    table = TABLES[name]
    settings = {**table.settings, "supervision.name": "all"}
    if data:
        settings["data.path"] = data
    config = configs.load(table.config.format(method="fedavg"), settings)
    experiment = load_experiment(config)
    inputs = compared(experiment.dataset)
    test = experiment.dataset.test
    stored = inputs.stored if test is None else np.concatenate([inputs.stored, _plain(test.x)])
    vectors = inputs.vectors(jnp.asarray(stored))
    rows: dict[str, Any] = {choice: {} for choice in choices}
    for seed in SEEDS:
        federation = federate(experiment, jax.random.key(seed))
        points = jax.device_get(points_of(federation))
        features = vectors[points.row]
        codes = graph.lsh_codes(jax.random.key(seed), features, BITS)
        near = graph.nearest_neighbors(codes, BITS, table.neighbors, has_angle(features))
        built = graph.build_graph(near, 3.0)
        truth = np.asarray(federation.labels)[points.row]
        new = points.new >= 0
        for choice in choices:
            for number in PER_CLASS:
                chosen = rows_of(choice, seed, features, ~new, points.client, truth, number)
                shares = np.zeros((len(truth), federation.num_classes), np.float32)
                shares[chosen, truth[chosen]] = 1
                shares /= np.maximum(shares.sum(axis=0), 1)
                scores = np.asarray(graph.propagate(built, jnp.asarray(shares), ALPHA))
                found = np.where(scores.max(axis=1) > 0, scores.argmax(axis=1), -1)
                accuracy = float((found == truth)[new].mean())
                rows[choice].setdefault(str(number), {})[str(seed)] = accuracy
        print(f"{name}, one shot: seed {seed}", flush=True)
    place = f" --data {table.place}" if table.place else ""
    made_by = f"python experiments/label_plan.py --run {name}{place} --learners xclp"
    store(name, ONE_SHOT, rows, made_by)


def _plain(inputs: np.ndarray) -> np.ndarray:
    """Return test examples without an axis of views."""
    return inputs[:, 0] if inputs.ndim == 3 else inputs


def rows_of(
    choice: str,
    seed: int,
    features: Array,
    train: np.ndarray,
    client: np.ndarray,
    truth: np.ndarray,
    number: int,
) -> np.ndarray:
    """Choose points to label, so many of a class on average, among training examples."""
    classes = int(truth.max()) + 1
    own = np.flatnonzero(train)
    chosen = CHOICES[choice]
    if chosen["supervision.name"] == "total_per_class":
        order = np.random.default_rng(seed).permutation(own)
        return np.concatenate([order[truth[order] == one][:number] for one in range(classes)])
    # All points, so that seeds share programs; those for testing are no points of the plan.
    there = jnp.asarray(train)
    quota = jnp.full(int(client.max()) + 1, len(train), jnp.int32)
    pool = Pool(features, there, ~there & there, there, jnp.asarray(client, jnp.int32), quota)
    strategy = chosen.get("supervision.strategy", "influence")
    # The other plans of a smaller budget are the beginning of that of the largest.
    nested = strategy != "typiclust"
    budget = classes * (max(PER_CLASS) if nested else number)
    name = strategy, seed, budget
    if name not in _PLANS:
        if len(_PLANS) > 20:
            _PLANS.clear()
        _PLANS[name] = np.asarray(choose(jax.random.key(seed), pool, budget, strategy).rows)
    return _PLANS[name][: classes * number]


_PLANS: dict[tuple[str, int, int], np.ndarray] = {}


def accuracies(runs: Sequence[StoredRun], classes: int) -> dict[str, dict[str, float]]:
    """Return test accuracies by labels of a class and by seed."""
    found: dict[str, dict[str, float]] = {}
    for one in runs:
        labels = one.config["supervision"]["labels"]
        by_class = one.config["supervision"]["name"] == "total_per_class"
        number = labels if by_class else labels // classes
        assert one.summary is not None
        found.setdefault(str(number), {})[str(one.config["seed"])] = one.summary["test_accuracy"]
    return found


def path_of(name: str) -> Path:
    """Return the file of a table's results."""
    return STORED / f"{name}.json"


def load(name: str) -> dict[str, Any]:
    """Read the stored results of a table, by learner and choice."""
    path = path_of(name)
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def cells(found: Mapping[str, Any], choice: str) -> list[str]:
    """Write the cells of a row: accuracies of random labels, differences by seed of all others."""
    row = []
    for number in map(str, PER_CLASS):
        own = found[choice]["accuracy"].get(number, {})
        base = found.get(RANDOM, {}).get("accuracy", {}).get(number, {})
        seeds = sorted(own if choice == RANDOM else own.keys() & base.keys())
        if not seeds:
            row.append("-")
            continue
        accuracy = pandas.Series({seed: own[seed] for seed in seeds})
        if choice == RANDOM:
            row.append(around_text(compare(accuracy), "%"))
            continue
        apart = around_text(compare(accuracy - pandas.Series(base)[seeds]), "%", sign=True)
        row.append(f"{100 * accuracy.mean():.1f} ({apart})")
    return row


def sections() -> list[str]:
    """Return the sections of all federations that have results."""
    return [section(name) for name in TABLES if path_of(name).exists()]


def section(name: str) -> str:
    """Write the tables of a federation, and the command of a row."""
    stored = load(name)
    table = TABLES[name]
    parts = [f"### {table.title}", table.text]
    titles = ["", *(f"{number} of a class" for number in PER_CLASS)]
    for learner, found in stored.items():
        rows = [[choice, *cells(found, choice)] for choice in CHOICES if choice in found]
        parts.append(markdown_table([learner, *titles[1:]], rows))
    commands = [
        found["plan-labels"]["command"] for found in stored.values() if "plan-labels" in found
    ]
    parts += [f"    {line}" for line in dict.fromkeys(commands)]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run rows of a table.

    Args:
        arguments: command line without the program's name; that of the process by default.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", choices=TABLES, required=True, help="the table to run")
    parser.add_argument("--data", default="", help="file or folder of its data")
    parser.add_argument("--choices", nargs="+", choices=CHOICES, default=[*CHOICES])
    parser.add_argument("--learners", nargs="+", choices=LEARNERS)
    options = parser.parse_args(arguments)
    for method in options.learners or TABLES[options.run].learners:
        if method == "xclp":
            one_shot(options.run, options.choices, options.data)
            continue
        for choice in options.choices:
            run(options.run, choice, method, options.data)


if __name__ == "__main__":
    main()
