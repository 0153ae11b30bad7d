"""The command `fedjax-ssl predict RUN images.npz`: from a run folder and new examples to labels."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas

from fedjax_ssl import cli, command_line, processor
from fedjax_ssl.folder.files import write_output
from fedjax_ssl.runs.model_file import CHECKPOINTS
from fedjax_ssl.trained.inputs import Examples, read_examples
from fedjax_ssl.trained.trained_model import TrainedModel, TrainedModelError, load_run

MANY = 20  # with more classes, no table of counts is printed


def main(arguments: list[str]) -> int:
    """Predict.

    Args:
        arguments: arguments after the subcommand.

    Returns:
        0.

    Raises:
        TrainedModelError: and other errors of reading a run; `fedjax_ssl.cli.main` turns them into
            messages.
    """
    given = _parser().parse_intermixed_args(arguments)
    processor.check_platform()
    command_line.use_compilation_cache()
    with command_line.notes_instead_of_warnings():
        _predict(given)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser(
        "predict",
        "Labels new examples with a trained run. Prints the labels as CSV, or writes a file.",
    )
    add = parser.add_argument
    add("run", type=Path, help="run folder")
    files = ".npz file (arrays inputs and, if known, labels), table, images, folders of images"
    add("inputs", type=Path, nargs="*", help=files)
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="CSV file for the labels (default: print)",
    )
    add("--all", action="store_true", help="add a column with the probability of every class")
    add(
        "--client",
        help=(
            "client whose own model predicts, or whose inputs these are: its name, or its number "
            "if clients have no names. If the run standardizes by client, the default is the "
            "run's client column or folders, and an unknown client is a new site"
        ),
    )
    add(
        "--uncalibrated",
        action="store_true",
        help="leave out the temperature of the run",
    )
    which = (
        f"{', '.join(CHECKPOINTS)} (default: auto, the best on validation examples if there are "
        "any, else the last)"
    )
    add(
        "--checkpoint",
        type=cli.one_of("checkpoint", CHECKPOINTS),
        default="auto",
        metavar="NAME",
        help=which,
    )
    add(
        "--resize",
        action="store_true",
        help="resize images to the model's size, if the run did not read images itself",
    )
    written = "write the parameters to this folder, as .safetensors"
    add("--export", type=Path, metavar="FOLDER", help=written)
    return parser


def _predict(given: argparse.Namespace) -> None:
    if not given.inputs and given.export is None:
        raise TrainedModelError("there is nothing to do: give inputs to label, or --export FOLDER")
    model = load_run(given.run, given.checkpoint)
    matrix = ""
    chosen = {"client": given.client}
    facts = {"model": str(model).strip("<>") + f" ({model.checkpoint} checkpoint)"}
    if given.inputs:
        examples = read_examples(given.inputs, model, given.resize, given.client)
        whose = given.client if examples.clients is None else given.client or examples.clients
        calibrated = not given.uncalibrated
        probabilities = model.predict(examples.inputs, client=whose, calibrated=calibrated)
        if (temperature := model.temperature_for(whose)) and not given.uncalibrated:
            how = "divides the logits, fitted on validation examples (--uncalibrated: without it)"
            facts["calibration"] = f"temperature {temperature:.3g} {how}"
        facts["inputs"] = f"{len(examples.inputs):,} ({examples.source})"
        if isinstance(whose, list):
            facts["clients"] = _of_clients(whose)
        for note in examples.notes:
            print(f"note: {note}", file=sys.stderr)
        predicted = probabilities.argmax(axis=1)
        facts |= _accuracy(examples.labels, predicted, model.was_trained_on(examples.inputs))
        known = examples.labels >= 0
        if known.any():
            matrix = _confusion(model.class_names, examples.labels[known], predicted[known])
        table = _table(model, examples, probabilities, given.all)
        text = table.to_csv(index=False, lineterminator="\n")
        if given.output is None:
            sys.stdout.write(text)
        else:
            write_output(given.output, text)
            facts["labels"] = str(given.output)
    if given.export is not None:
        given.export.mkdir(parents=True, exist_ok=True)
        parameters = given.export / "parameters.safetensors"
        facts["parameters"] = str(model.save_parameters(parameters, **chosen))
    for name, value in facts.items():
        print(f"{name:<11} {value}", file=sys.stderr)
    print(matrix, end="", file=sys.stderr)


def _of_clients(whose: Sequence[str]) -> str:
    """Count the inputs of every client."""
    counts = Counter(one or "(no name)" for one in whose)
    shown = [f"{name} ({count:,})" for name, count in counts.most_common(MANY)]
    return ", ".join(shown) + ", ..." * (len(counts) > MANY)


def _accuracy(labels: np.ndarray, predicted: np.ndarray, seen: np.ndarray) -> dict[str, str]:
    """Return the test accuracy in words; labels that the run has seen say nothing about new
    examples.

    Args:
        labels: -1 = none is known.
        predicted: classes.
        seen: mask of labels that the run has seen.
    """
    known = labels >= 0
    right = predicted == labels
    new = known & ~seen
    old = known & seen
    said = {}
    if new.any():
        of = "all" if new.all() else f"{new.sum():,} of {new.size:,}"
        which = "have a label" + " that training did not see" * bool(old.any())
        said["accuracy"] = f"{right[new].mean():.2%} ({of} {which})"
    if old.any():
        of = "all" if old.all() else f"{old.sum():,} of {old.size:,}"
        said["accuracy" if not said else "trained on"] = (
            f"{right[old].mean():.2%} ({of} have a label that the model was trained on or chosen "
            "by: this says nothing of new examples)"
        )
    return said


def _confusion(names: Sequence[str], true: np.ndarray, predicted: np.ndarray) -> str:
    """Count examples by true class (rows) and predicted class (columns); None with many classes."""
    if len(names) > MANY:
        return ""
    counts = np.zeros((len(names), len(names)), int)
    np.add.at(counts, (true, predicted), 1)
    table = pandas.DataFrame(counts, names, names)
    return f"\ntrue class (rows), predicted (columns)\n{table.to_string()}\n"


def _table(
    model: TrainedModel, examples: Examples, probabilities: np.ndarray, every: bool
) -> pandas.DataFrame:
    """Make a row per example: its name, the predicted class, its probability, and the true class if
    known.
    """
    names = np.array([*model.class_names, ""], object)
    best = probabilities.argmax(axis=1)
    texts = np.char.mod("%.6f", probabilities).astype(object)
    columns = {
        "input": examples.names,
        "label": best,
        "name": names[best],
        "probability": texts.max(axis=1),
    }
    if (examples.labels >= 0).any():
        columns["true_label"] = [label if label >= 0 else "" for label in examples.labels.tolist()]
        columns["true_name"] = names[examples.labels]  # the last one is for -1, no label
    if every:
        columns |= {
            f"probability_{name}": column
            for name, column in zip(model.class_names, texts.T, strict=True)
        }
    return pandas.DataFrame(columns)
