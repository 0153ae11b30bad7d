"""A leaderboard that others can check: all methods of a table on the same splits and rounds.

    python experiments/leaderboard.py --run digits                       # a table, stored
    python experiments/leaderboard.py --run digits --rows fixmatch sage  # rows of it
    python experiments/leaderboard.py --run heart --data FOLDER          # whose data are elsewhere
    python experiments/leaderboard.py --run mnist --data mnist.npz
    python experiments/leaderboard.py                                    # writes the page anew

A row is one `fedjax-ssl sweep` with five seeds, which the page names; a row that was run before
goes on from its folder. Results are kept in experiments/leaderboard/TABLE.json, and
docs/leaderboard.md is written from them. To add a method, add it to its tables in `TABLES` and run
its rows.
"""

import argparse
import itertools
import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from fedjax_ssl.folder.environment import device_description, git_commit, versions
from fedjax_ssl.folder.files import encode_json, write_atomically
from fedjax_ssl.folder.stored_run import StoredRun, find_runs, read_run
from fedjax_ssl.report.exports import markdown_table

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "experiments" / "leaderboard"
PAGE = ROOT / "docs" / "leaderboard.md"
RUNS = Path("runs/leaderboard")
LEVEL = 0.95
SAME_STEPS = 0.5  # a step's half: what rounding makes of a mean over clients of unequal size
TITLES = (
    "method",
    "accuracy, %",
    "over labels alone",
    "worst client, %",
    "rounds",
    "local steps",
    "MB",
    "CPU s",
    "split",
)
HEAD = """# Leaderboard

Methods for few labels on federations that others can check: the same examples at the same
clients, the same labels, the same rounds and local steps, five seeds. This page is written by
`python experiments/leaderboard.py` from the results in `experiments/leaderboard`. A method's name
leads to its config; the command of its row, below the table, runs it again, and
`fedjax-ssl run CONFIG --help` lists all settings. `fedjax-ssl cite METHOD` prints BibTeX of a
method, `fedjax-ssl cite RUN` of method, data and tool of a run.

- accuracy: on the test examples after the last round, with no choice of a round; mean of five
  seeds and half the width of its 95 % t interval. "over labels alone": the same of the differences
  by seed to the method that learns from labels alone.
- "more than chance" below a table: such an interval of differences without 0. One in twenty is
  wrong, so that of twenty methods that are as good as labels alone one would be named.
- worst client: accuracy on the client with test examples that comes off worst; "-" where no client
  has any, or each a model of its own.
- local steps: mean of a client in a round, whole run. All methods of a table have the same
  rounds, cohorts, network, and batches of as many labelled examples; unlabelled ones are the
  method's `unlabelled_ratio` times as many. `optimizer.local_steps` gives all the same steps;
  ProtoFSSL takes as many episodes, FedMatch as many passes over its labels, which are one batch.
  §: a method that took others. All else is what its config recommends, with two exceptions:
  CIFAR-10's rate was chosen from 0.01, 0.03 and 0.1 by the test accuracy of labels alone (Dirichlet
  0.1, seed 0), and momentum was left out for two methods on MNIST, after test accuracies.
- MB: sent both ways in a run. CPU s: processor seconds of all seeds together, with start and
  compiling.
- split: hash of the split of seed 0 ([split files](datasets.md#split-files)); rows with the same
  hash are paired. `fedjax-ssl data split CONFIG --seeds 5` with the settings of a row writes its
  splits for other code.
- commit: of the code that ran; some of it was rebased between the runs and its landing, and the
  commit named is the one that landed."""
Settings = Mapping[str, Any]
# Methods whose rounds are counted otherwise than by `optimizer.local_steps`.
OWN_STEPS = {
    "fedrgd": "method.local_steps",
    "fedmatch": "optimizer.local_epochs",  # passes over its labels, which are one batch
    "protofssl": "optimizer.local_epochs",  # episodes
}
BY_EPOCH = ("single", "semifl", "fl2")  # the clients' epoch is over confident examples, if at all


class Row(NamedTuple):
    """A method in a table."""

    method: str  # the config's name for it
    settings: Mapping[str, Any] = {}  # beside those of the table


class Table(NamedTuple):
    """A federation and the methods that fit it."""

    title: str
    text: str  # what a reader has to know
    config: str  # NAME:{method},PLACE
    settings: Settings  # of all rows
    steps: int  # local steps of a client in a round
    rows: Mapping[str, Row]
    place: str = ""  # what stands for the user's --data in commands
    seeds: int = 5
    alone: str = "fedavg"  # the row that learns from labels alone
    pairs: Sequence[tuple[str, str]] = ()  # rows whose differences by seed are written
    found: str = ""  # what the results show beside that
    uneven: str = ""  # why some rows have other local steps
    counted: float | None = None  # what the column shows then, with the server's; None: `steps`


LABELS_FROM = {"method.labels_from": "global"}
FREEMATCH = {**LABELS_FROM, "method.threshold_rule": "freematch"}
CONSISTENCY = {
    "fixmatch": Row("fixmatch"),
    "fixmatch, labels of the received model": Row("fixmatch", LABELS_FROM),
    "freematch, labels of the received model": Row("fixmatch", FREEMATCH),
    "freematch, labels of the received model, decay 0.99": Row(
        "fixmatch", {**FREEMATCH, "method.threshold_decay": 0.99}
    ),
    "flexmatch": Row("fixmatch", {"method.threshold_rule": "flexmatch"}),
    "softmatch": Row("fixmatch", {"method.threshold_rule": "softmatch"}),
    **{
        name: Row(name)
        for name in ("uda", "mixmatch", "mean_teacher", "pi_model", "vat", "pseudo_label")
    },
}
LABELS_ONLY = {"fedavg": Row("fedavg"), "alone": Row("alone"), "pooled": Row("pooled")}
GRAPHS = {
    name: Row(name) for name in ("xclp", "per_client_lp", "network_pseudo_label", "fedsem", "mixed")
}
AT_CLIENTS = {
    **LABELS_ONLY,
    **CONSISTENCY,
    **GRAPHS,
    **{name: Row(name) for name in ("sage", "proxyfl", "fedmatch", "protofssl", "fedrgd")},
}
# FedMatch's epoch without labels is six batches of twenty.
AT_SERVER = {
    name: Row(name)
    for name in ("single", "semifl", "fl2", "fixmatch", "uda", "mean_teacher", "fedrgd")
} | {"fedmatch": Row("fedmatch", {"optimizer.local_epochs": 2})}
# SAGE's federation on a tenth of the images and an eighth of the network's width, for one core; of
# the rates 0.01, 0.03 and 0.1 the one at which labels alone learn most in twelve rounds (seed 0).
CIFAR = {
    "rounds": 15,
    "eval_every": 5,
    "data.pools": "(500,0,200)",
    "partition.labels_per_class": 50,
    "model.widen": 1,
    "model.width_factor": 0.5,
    "optimizer.batch_size": 8,
    "optimizer.learning_rate": 0.03,
}
CIFAR_TEXT = (
    "SAGE's federation on a tenth of the images: 20 clients with 25 labelled of 250 images each, 8 "
    "in each of 15 rounds; 2,000 images are the test. ResNet-8 of an eighth of the width, batches "
    "of 8 labelled and 16 of all images, the rate 0.03. Images of CIFAR-10 that went through JPEG. "
    "Two seeds, on one core."
)
CIFAR_FOUND = {
    "0.1": "ProxyFL is first with both seeds, as in its paper. The others do not have the paper's "
    "order, FedAvg, FixMatch with local and with received labels, SAGE.",
    "1": "ProxyFL is first with both seeds; means have the paper's order, FedAvg, FixMatch with "
    "local and with received labels, SAGE, ProxyFL, but for the first two.",
}
UNSURE = (
    "Two seeds and 300 local steps tell none of them apart, and hardly any pseudo-label counts: in "
    "the last five rounds 1.4 to 4.6 % of the images with labels of the own network (FixMatch, "
    "SAGE), of which 22 to 37 % are right, at most 0.4 % with those of the received one. ProxyFL's "
    "contrast learns from the others too. The paper has 300 rounds of 95 steps and 69 to 90 %, "
    "a run for a GPU: `fedjax-ssl run cifar10_proxyfl:0.1`."
)
OF_SAGE = {"method.unlabelled_ratio": 2, "method.labelled_too": True}
SAGES = {
    "fedavg": Row("fedavg"),
    "fixmatch": Row("fixmatch", OF_SAGE),
    "fixmatch, labels of the received model": Row("fixmatch", {**OF_SAGE, **LABELS_FROM}),
    "sage": Row("sage"),
    "proxyfl": Row("proxyfl"),
}
SERVER_STEPS = (
    "`single` trains at the server alone; SemiFL's and (FL)^2's clients take an epoch over what is "
    "confident; FedMatch's server takes 5 steps a round, FedRGD's 24."
)
PLAIN_SGD = {"optimizer.momentum": 0.0}
TABLES = {
    "digits": Table(
        "Digits, 5 labels at each writer",
        "The digits of the package: 11 writers train with 5 labels of about 125 examples each, 10 "
        "of them in a round, 3 writers that were never seen are the test. A network of one hidden "
        "layer, 80 rounds. Client accuracy is that of a test writer.",
        "digits:{method},per_client",
        {"rounds": 80, "eval_every": 20, "optimizer.batch_size": 10},
        12,
        AT_CLIENTS,
        pairs=(
            ("freematch, labels of the received model, decay 0.99", "fixmatch"),
            ("freematch, labels of the received model", "fixmatch"),
            ("fixmatch, labels of the received model", "fixmatch"),
            ("proxyfl", "sage"),
        ),
        found="FreeMatch's averages have 960 local steps here to leave their start; its paper's "
        "decay of 0.999, the default, is slow for that. ProtoFSSL loses with every episode where "
        "clients lack classes ([why](results.md#every-method-side-by-side-on-the-digits)): with "
        "one a round it had 80.5 ± 2.9.",
    ),
    "digits-server": Table(
        "Digits, 50 labels at the server",
        "The same writers without any label, and 50 labelled examples at the server, taken from "
        "the writers that train. 80 rounds. Local steps count those of the server with the "
        "clients': 12 at each of ten clients and 50 at the server are 17.",
        "digits:{method},server",
        {"rounds": 80, "eval_every": 20, "optimizer.batch_size": 10},
        12,
        AT_SERVER,
        alone="single",
        uneven=SERVER_STEPS,
        counted=17,
    ),
    "heart": Table(
        "Fed-Heart-Disease, 10 labels at each hospital",
        "FLamby's four hospitals with 386 patients who train and 254 who are tested, 13 numbers "
        "each; softmax regression, all hospitals in each of 60 rounds. Client accuracy is that of "
        "a hospital. Methods that augment images do not fit.",
        "fed_heart_disease:{method},10",
        {"rounds": 60, "eval_every": 20},
        12,
        {
            **LABELS_ONLY,
            **GRAPHS,
            **{name: Row(name) for name in ("pseudo_label", "vat", "mean_teacher", "protofssl")},
        },
        "FOLDER",
        found="With the steps of its own epochs, 4.2 a round, `xclp` had 68.5 ± 5.4 % (commit "
        "cc22ecd8), and labels alone have 65.3 with 4: with 12 steps on ten labels most of what "
        "graphs added is gone; why was not looked into.",
    ),
    "mnist": Table(
        "MNIST, 10 labels at each client",
        "60,000 images dealt iid to 100 clients, 10 labels at each, 10 clients in each of 20 "
        "rounds, so that all rows could be had on two cores; a network of one hidden layer of 100.",
        "mnist:{method},per_client",
        {"rounds": 20, "eval_every": 10, "optimizer.batch_size": 10, "model.hidden": "(100,)"},
        20,
        AT_CLIENTS | {name: Row(name, PLAIN_SGD) for name in ("sage", "proxyfl")},
        "mnist.npz",
        pairs=(
            ("freematch, labels of the received model, decay 0.99", "fixmatch"),
            ("fixmatch, labels of the received model", "fixmatch"),
            ("proxyfl", "sage"),
        ),
        found="`sage` and `proxyfl` are without the momentum of their config: at the rate 0.1 this "
        "network, which has no norm, hardly learns with it (57.9 ± 5.9 and 47.8 ± 4.4 %). "
        "`fedmatch` diverges at some clients at the rate of its config, 0.03, hence its steps. UDA "
        "counts labels from 0.8 on: with seed 0, 52 % of the 23 % that count are right in the last ten rounds, FixMatch's from "
        "0.95 86 % of 17 %. ProtoFSSL as on the digits. With 100 rounds more methods are ahead of "
        "labels alone ([MNIST](results.md#methods-side-by-side-on-mnist)).",
    ),
    **{
        f"cifar10-{alpha}": Table(
            f"CIFAR-10, 10 % labels at the clients, Dirichlet {alpha}",
            CIFAR_TEXT,
            f"cifar10_proxyfl:{alpha}",
            CIFAR,
            20,
            SAGES,
            "cifar10.npz",
            seeds=2,
            pairs=tuple(itertools.pairwise(reversed(SAGES))),
            found=f"{found} {UNSURE}",
        )
        for alpha, found in CIFAR_FOUND.items()
    },
}


def command(name: str, row: str, data: str | None) -> list[str]:
    """The sweep of a row, without the program."""
    table = TABLES[name]
    method, own = table.rows[row]
    settings = {**table.settings, **steps(table, method), **own}
    config = table.config.format(method=method)
    if config == table.config:
        settings = {"method.name": method, **settings}
    if data:
        settings |= {"data.path": data}
    if data and table.place.endswith(".npz"):
        settings |= {"data.name": "npz"}
    words = ["sweep", config, "--seeds", str(table.seeds)]
    words += [f"--{field}={value}" for field, value in settings.items()]
    return [*words, "--workdir", str(RUNS / name / row.replace(" ", "_").replace(",", ""))]


def steps(table: Table, method: str) -> Settings:
    """Settings with which a client takes the local steps of its table in a round."""
    if method in BY_EPOCH:
        return {"optimizer.local_epochs": 1}
    if method in OWN_STEPS:
        return {OWN_STEPS[method]: table.steps}
    return {"optimizer.local_epochs": 1, "optimizer.local_steps": table.steps}


def run(name: str, row: str, data: str | None) -> None:
    """Runs a row and stores what came out."""
    words = command(name, row, data)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-m", "fedjax_ssl.cli", *words, "--workers", "1", "--quiet"]
    done = subprocess.run(program, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    stored = load(name)
    if done.returncode:
        print(f"{name}, {row}: did not run")
        return
    found = numbers(map(read_run, find_runs([words[-1]])))
    if earlier := stored.get(row):
        seconds = max(seconds, earlier["processor_seconds"])  # a finished row runs no more
    stored[row] = found | {
        "command": shlex.join(["fedjax-ssl", *command(name, row, TABLES[name].place)]),
        "processor_seconds": round(seconds, 1),
        "device": device_description(),
        "commit": git_commit(),
        "versions": versions(("jax",)),
    }
    STORED.mkdir(exist_ok=True)
    write_atomically(path_of(name), encode_json(stored, indent=1) + "\n")
    print(f"{name}, {row}: {in_words(np.array(found['accuracy']))} % ({seconds:.0f} s)", flush=True)


def numbers(runs: Any) -> dict[str, Any]:
    """What finished runs of a row say, by seed."""
    ordered = sorted((one for one in runs if one.finished), key=lambda one: one.config["seed"])
    return {
        "seeds": [one.config["seed"] for one in ordered],
        "accuracy": [one.rows[-1]["test_accuracy"] for one in ordered],
        "worst_client": [worst(one) for one in ordered],
        "rounds": ordered[0].summary["rounds"] if ordered[0].summary else None,
        "bytes": float(
            np.mean([total(one, "bytes_up") + total(one, "bytes_down") for one in ordered])
        ),
        "steps": float(np.mean([total(one, "local_steps") for one in ordered])),
        "clients": float(np.mean([total(one, "clients") for one in ordered])),
        "splits": [(one.summary or {})["split"] for one in ordered],
        "dropped": sum(total(one, "dropped_clients") for one in ordered),
        "diverged": sum("diverged" in (one.summary or {}) for one in ordered),
    }


def worst(one: StoredRun) -> float | None:
    """Accuracy of the client on whose test examples the model is worst; None without such."""
    found = list(one.clients.get("model", {}).values())
    return min(found) if found else None


def total(one: StoredRun, column: str) -> float:
    """Sum over all rounds of a run."""
    return float(sum(row.get(column) or 0 for row in one.rows))


def path_of(name: str) -> Path:
    """Where a table's results are."""
    return STORED / f"{name}.json"


def load(name: str) -> dict[str, Any]:
    """The stored rows of a table; none: an empty dictionary."""
    path = path_of(name)
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def page() -> str:
    """docs/leaderboard.md, from the stored results."""
    found = {name: load(name) for name in TABLES}
    return "\n\n".join([HEAD, *(section(name, found[name]) for name in TABLES)]) + "\n"


def section(name: str, stored: Mapping[str, Any]) -> str:
    """A table with what it shows, its splits and commands, and the rows that are not run yet."""
    table = TABLES[name]
    missing = [row for row in table.rows if row not in stored]
    parts = [f"## {table.title}", table.text]
    ranked = sorted(stored, key=lambda row: -float(np.mean(stored[row]["accuracy"])))
    if ranked:
        usual = stored[table.alone if table.alone in stored else ranked[0]]["splits"]
        lines = [line(table, row, stored, usual) for row in ranked]
        said = " ".join([*shown(table, ranked, stored), table.found]).strip()
        parts += [markdown_table(TITLES, lines), said, notes(table, ranked, stored, usual)]
        parts.append("\n".join(f"    {stored[row]['command']}  # {row}" for row in ranked))
    if missing:
        data = f" --data {table.place}" if table.place else ""
        parts.append(
            f"Not run: {'; '.join(missing)}. `python experiments/leaderboard.py --run {name}{data} "
            "--rows ROW` runs one and adds it."
        )
    return "\n\n".join(part for part in parts if part)


def shown(table: Table, ranked: Sequence[str], stored: Mapping[str, Any]) -> list[str]:
    """Sentences: who is ahead of labels alone, whom the seeds cannot tell from the best."""
    said = []
    against = verdicts(ranked, table.alone, stored)
    for words, verdict in (
        ("By more than chance ahead of labels alone", "ahead"),
        ("By more than chance behind", "behind"),
        (f"{counted_seeds(stored[ranked[0]])} cannot tell from labels alone", "unknown"),
    ):
        if rows := [row for row, found in against.items() if found == verdict]:
            said.append(f"{words}: {'; '.join(rows)}.")
    best, *others = [row for row in ranked if stored[row]["splits"] == stored[ranked[0]]["splits"]]
    alike = [row for row, found in verdicts(others, best, stored).items() if found == "unknown"]
    if alike:
        said.append(f"Not told from the best, {best}: {'; '.join(alike)}.")
    elif others:
        said.append(f"The best, {best}, is ahead of every other by more than chance.")
    pairs = [
        f"{first} over {second} {in_words(difference(stored, first, second), '+')}"
        for first, second in table.pairs
        if {first, second} <= stored.keys()
    ]
    if pairs:
        said.append(f"Differences by seed: {'; '.join(pairs)}.")
    return said


def counted_seeds(stored: Mapping[str, Any]) -> str:
    """The number of seeds of a row, at the start of a sentence."""
    number = len(stored["seeds"])
    return {2: "Two seeds", 5: "Five seeds"}.get(number, f"{number} seeds")


def difference(stored: Mapping[str, Any], first: str, second: str) -> np.ndarray:
    """Differences of accuracy by seed, as shares."""
    return np.array(stored[first]["accuracy"]) - np.array(stored[second]["accuracy"])


def verdicts(rows: Sequence[str], other: str, stored: Mapping[str, Any]) -> dict[str, str]:
    """Row -> "ahead" of another on the same splits, "behind" it or "unknown"."""
    found = {}
    for row in rows:
        if row == other or other not in stored or stored[row]["splits"] != stored[other]["splits"]:
            continue
        values = difference(stored, row, other)
        mean, half = values.mean(), half_width(values)
        found[row] = "unknown"
        if abs(mean) > half:
            found[row] = "ahead" if mean > 0 else "behind"
    return found


def line(table: Table, row: str, all_rows: Mapping[str, Any], usual: Sequence[str]) -> list[str]:
    """The cells of a row."""
    stored = all_rows[row]
    base = all_rows.get(table.alone)
    gain = "-"
    if base is not None and row != table.alone and base["splits"] == stored["splits"]:
        gain = in_words(difference(all_rows, row, table.alone), "+")
    worst = [value for value in stored["worst_client"] if value is not None]
    config = stored["command"].split()[2].partition(":")[0]
    taken = steps_of(stored)
    return [
        f"[{row}](../configs/{config}.py)",
        in_words(np.array(stored["accuracy"])) + " ‡" * bool(stored["diverged"]),
        gain,
        in_words(np.array(worst)) if worst else "-",
        str(stored["rounds"]),
        f"{taken:.1f}" + " §" * differs(table, stored),
        f"{stored['bytes'] / 1e6:.1f}",
        f"{stored['processor_seconds']:.0f}",
        f"`{stored['splits'][0]}`" + " †" * (stored["splits"] != usual),
    ]


def steps_of(stored: Mapping[str, Any]) -> float:
    """Mean local steps of a client in a round; of the server, where it trains alone."""
    return float(stored["steps"] / (stored["clients"] or stored["rounds"]))


def differs(table: Table, stored: Mapping[str, Any]) -> bool:
    """Whether a row has other local steps than its table."""
    return abs(steps_of(stored) - (table.counted or table.steps)) > SAME_STEPS


def notes(
    table: Table, ranked: Sequence[str], stored: Mapping[str, Any], usual: Sequence[str]
) -> str:
    """What is common to the rows: splits, device, commit; what the marks say."""
    seeds = stored[ranked[0]]["seeds"]
    hashes = ", ".join(f"`{split}`" for split in usual)
    said = [f"Splits of seeds {seeds[0]} to {seeds[-1]}: {hashes}."]
    if any(stored[row]["splits"] != usual for row in ranked):
        said.append("†: other splits, all examples being at one place.")
    if any(stored[row]["diverged"] for row in ranked):
        said.append("‡: some seed diverged.")
    for row in ranked:
        if stored[row].get("dropped"):
            said.append(
                f"{row}: {stored[row]['dropped']:.0f} updates of clients were not finite and left "
                "out."
            )
    others = [row for row in ranked if differs(table, stored[row])]
    if others:
        said.append(f"§: others have {table.counted or table.steps}. {table.uneven}".strip())
    commits: dict[str, set[str]] = {}
    for one in stored.values():
        machine = f"{one['device']}, jax {one['versions'].get('jax')}"
        commits.setdefault(machine, set()).add(str(one["commit"])[:8])
    origins = [
        f"{machine}, {'commits' if len(found) > 1 else 'commit'} {', '.join(sorted(found))}."
        for machine, found in sorted(commits.items())
    ]
    return " ".join([*said, *origins])


def in_words(shares: np.ndarray, sign: str = "") -> str:
    """Mean and half the width of the 95 % t interval, in percent.

    Args:
        shares: one for each seed.
        sign: "+" to write the mean with its sign.
    """
    values = 100 * shares
    mean = format(values.mean(), f"{sign}.1f")
    if len(values) < 2:
        return mean
    return f"{mean} ± {half_width(values):.1f}"


def half_width(values: np.ndarray) -> float:
    """Half the width of the 95 % t interval of a mean of at least two values."""
    quantile = scipy.stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)
    return float(quantile * values.std(ddof=1) / len(values) ** 0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is asked for, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="of the table; all by default")
    parser.add_argument("--data", help="file or folder of the table's data, where they are yours")
    asked = parser.parse_args(arguments)
    if asked.run:
        rows = TABLES[asked.run].rows
        if unknown := [row for row in asked.rows or () if row not in rows]:
            parser.error(f"{asked.run} has no row {unknown[0]!r}; its rows: {', '.join(rows)}")
        for row in asked.rows or rows:
            run(asked.run, row, asked.data)
    write_atomically(PAGE, page())


if __name__ == "__main__":
    main()
