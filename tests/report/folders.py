"""Run folders as `run` leaves them, without a run: curves that rise, from a formula and a seed."""

import functools
import json
import math
from pathlib import Path

import numpy as np
from PIL import Image

from fedjax_ssl import config
from fedjax_ssl.folder.folder_lock import flat_config

VERSIONS = {"python": "3.11.7", "fedjax_ssl": "0.1.0", "jax": "0.10.2", "numpy": "2.4.6"}
QUALITY = {"fedavg": 0.87, "fixmatch": 0.885, "semifl": 0.90, "fedmatch": 0.88, "xclp": 0.925}


@functools.cache
def _config_text(method: str) -> str:
    return json.dumps(config.default(method).to_dict())


def write_run(
    folder: Path,
    *,
    method: str = "fedavg",
    seed: int = 0,
    settings: dict | None = None,
    rounds: int = 60,
    done: int | None = None,
    every: int = 5,
    accuracy: float | None = None,
    test: bool = True,
    clients: int = 0,
    picture: bool = True,
    command: str = "fedjax-ssl sweep digits --seeds 5",
) -> Path:
    """Writes a run folder; killed after `done` rounds, or finished, with an accuracy of so many
    clients.
    """
    folder.mkdir(parents=True)
    fields = json.loads(_config_text(method))
    fields |= {"seed": seed, "rounds": rounds}
    fields["optimizer"]["schedule_rounds"] = rounds
    for name, value in (settings or {}).items():
        section, _, own = name.rpartition(".")
        (fields[section] if section else fields)[own] = value
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    alike = config.fields_that(lambda one: one.alike)
    (folder / "model.json").write_text(json.dumps({"alike": alike}))
    flat = flat_config(fields)
    random = np.random.default_rng(
        [seed, *map(ord, method), int(1000 * flat["optimizer.learning_rate"])]
    )
    rate = flat["optimizer.learning_rate"]
    best = QUALITY.get(method, 0.85) - 0.03 * math.log10(rate / 0.2) ** 2 + random.normal(0, 0.007)
    rows = []
    for number in range(every, (rounds if done is None else done) + 1, every):
        grown = 1 - math.exp(-number * rate**0.4 / (0.07 * rounds))
        reached = 0.15 + (best - 0.15) * grown + random.normal(0, 0.006)
        row = {
            "bytes_down": 2114200,
            "bytes_up": 2114200,
            "clients": 55,
            "dropped_clients": 0,
            "examples": 12882,
        }
        row |= {
            "local_steps": 1334,
            "loss": 2.3 - 2.1 * grown + abs(random.normal(0, 0.01)),
            "round": number,
        }
        if method != "fedavg":
            row |= {
                "pseudo_label_accuracy": 0.5 + 0.4 * grown,
                "pseudo_label_coverage": 0.9 * grown,
            }
        if test:
            row |= {
                "test_accuracy": reached,
                "test_balanced_accuracy": reached - 0.004,
                "test_loss": 2.4 - 2 * grown,
            }
        rows.append(
            row | {"seconds": 0.37 * random.uniform(0.9, 1.2), "client_updates_per_second": 150.0}
        )
    if accuracy is not None and rows:
        rows[-1]["test_accuracy"] = accuracy
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if done is None:
        last = rows[-1] if rows else {}
        summary = {"method": method, "dataset": "digits", "seed": seed, "rounds": rounds}
        summary |= {"test_accuracy": last.get("test_accuracy"), "compile_seconds": 11.5}
        summary |= {"train_seconds": sum(row["seconds"] for row in rows), "versions": VERSIONS}
        summary |= {
            "device": "CPU (2 cores, 1 device)",
            "command": command,
            "peak_memory_bytes": 708374528,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    if clients:
        shares = np.clip(best - np.abs(random.normal(0, 0.06, clients)), 0, 1)
        lines = [f"site {number},5,{share:.4f},{share:.4f}" for number, share in enumerate(shares)]
        header = "client,new_examples,network_accuracy,network_balanced_accuracy"
        (folder / "predictions_by_client.csv").write_text("\n".join([header, *lines, ""]))
    (folder / "partition.txt").write_text(
        "11 clients (11 with labels), 1402 training examples, 550 labelled\n"
    )
    if picture:
        Image.new("RGB", (880, 620), "#b0c4de").save(folder / "partition.png")
    return folder


def write_sweep(
    folder: Path, methods=tuple(QUALITY), rates=(0.03, 0.1, 0.3, 1.0), seeds: int = 5, **arguments
) -> list[Path]:
    """Writes a grid of runs, 5 methods x 4 learning rates x 5 seeds by default."""
    return [
        write_run(
            folder / "runs" / f"{method}_lr{rate:g}_seed{seed}",
            method=method,
            seed=seed,
            settings={"optimizer.learning_rate": rate},
            **arguments,
        )
        for method in methods
        for rate in rates
        for seed in range(seeds)
    ]


def add_scores(folder: Path, labels: list[int], share: list[float]) -> Path:
    """Adds detailed scores of two classes, "well" and "ill", and their test predictions, to a run:
    true classes, and the probability of "ill" of every test example.
    """
    true = np.array(labels)
    probability = np.array(share)
    predicted = (probability > 0.5).astype(int)
    confusion = np.zeros((2, 2), int)
    np.add.at(confusion, (true, predicted), 1)
    hits, support, claimed = confusion.diagonal(), confusion.sum(1), confusion.sum(0)

    def ratios(part, whole):
        return [float(a / b) if b else None for a, b in zip(part, whole, strict=True)]

    scores = {
        "examples": len(labels),
        "classes": ["well", "ill"],
        "recall": ratios(hits, support),
        "precision": ratios(hits, claimed),
        "f1": ratios(2 * hits, support + claimed),
        "support": support.tolist(),
        "confusion": confusion.tolist(),
    }
    file = folder / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"scores": scores}))
    lines = ["split,row,client,label,prediction,probability_well,probability_ill"]
    for row, (one, guess, ill) in enumerate(zip(true, predicted, probability, strict=True)):
        names = f"{scores['classes'][one]},{scores['classes'][guess]}"
        lines.append(f"train,{row},site {row % 2},{names},{1 - ill:.6f},{ill:.6f}")
    (folder / "test_predictions.csv").write_text("\n".join([*lines, ""]))
    return folder
