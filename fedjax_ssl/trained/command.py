"""The command: `fedjax-ssl predict RUN images.npz`, from a run folder and new examples to labels."""

import argparse
import csv
import io
import sys
from pathlib import Path

import numpy as np

from fedjax_ssl import cli, command_line
from fedjax_ssl.runs.files import write_output
from fedjax_ssl.trained.inputs import Examples, read_examples
from fedjax_ssl.trained.load import CHECKPOINTS, load_run
from fedjax_ssl.trained.model import TrainedModel, TrainedModelError


def main(arguments: list[str]) -> int:
    """Predicts.

    Args:
        arguments: without the program and the subcommand.

    Returns:
        0.

    Raises:
        TrainedModelError: and what else reading a run raises; `fedjax_ssl.cli.main` makes messages of it.
    """
    given = _parser().parse_args(arguments)
    command_line.use_compilation_cache()
    with command_line.notes_instead_of_warnings():
        _predict(given)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser(
        "predict", "Labels new examples with a trained run. The labels are CSV on standard output, or in a file."
    )
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument(
        "inputs",
        type=Path,
        nargs="*",
        help=".npz file (arrays inputs and, if known, labels), images, folders of images",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="CSV file for the labels")
    parser.add_argument("--all", action="store_true", help="a column with the probability of every class, too")
    parser.add_argument("--client", help="name or number of the client whose own model is used")
    parser.add_argument(
        "--checkpoint",
        type=cli.one_of("checkpoint", CHECKPOINTS),
        default="auto",
        metavar="NAME",
        help=f"{', '.join(CHECKPOINTS)}; auto: best by validation where there are validation examples, else last",
    )
    parser.add_argument("--resize", action="store_true", help="bring images to the size that the model takes")
    parser.add_argument(
        "--export",
        type=Path,
        metavar="FOLDER",
        help="write the parameters as .safetensors and the prediction as StableHLO there",
    )
    return parser


def _predict(given: argparse.Namespace) -> None:
    if not given.inputs and given.export is None:
        raise TrainedModelError("nothing to do: give inputs to label, or --export FOLDER")
    model = load_run(given.run, given.checkpoint)
    facts = {"model": str(model).strip("<>") + f" ({model.checkpoint} checkpoint)"}
    client = int(given.client) if given.client is not None and given.client.isdigit() else given.client
    client = given.client if given.client in model.client_names else client
    if given.inputs:
        examples = read_examples(given.inputs, model, given.resize)
        probabilities = model.predict(examples.inputs, client=client)
        text = _csv(model, examples, probabilities, given.all)
        facts["inputs"] = f"{len(examples.inputs):,} ({examples.source})"
        known = examples.labels >= 0
        if known.any():
            right = probabilities.argmax(axis=1)[known] == examples.labels[known]
            of = "all" if known.all() else f"{known.sum():,} of {known.size:,}"
            facts["accuracy"] = f"{right.mean():.2%} ({of} have a label)"
        if given.output is None:
            sys.stdout.write(text)
        else:
            write_output(given.output, text)
            facts["labels"] = str(given.output)
    if given.export is not None:
        given.export.mkdir(parents=True, exist_ok=True)
        facts["parameters"] = str(model.save_parameters(given.export / "parameters.safetensors", client=client))
        facts["prediction"] = str(model.save_prediction(given.export / "prediction.stablehlo", client=client))
    for name, value in facts.items():
        print(f"{name:<10} {value}", file=sys.stderr)


def _csv(model: TrainedModel, examples: Examples, probabilities: np.ndarray, every: bool) -> str:
    """A line per example: what it is, the likeliest class, how probable this is, and the true class where known."""
    known = bool((examples.labels >= 0).any())
    header = ["input", "label", "name", "probability", *(["true_label", "true_name"] if known else [])]
    header += [f"probability_{name}" for name in model.class_names] if every else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for name, row, truth in zip(examples.names, probabilities, examples.labels.tolist(), strict=True):
        best = int(row.argmax())
        line = [name, best, model.class_names[best], f"{row[best]:.6f}"]
        if known:
            line += [truth, model.class_names[truth]] if truth >= 0 else ["", ""]
        writer.writerow([*line, *(f"{value:.6f}" for value in row)] if every else line)
    return text.getvalue()
