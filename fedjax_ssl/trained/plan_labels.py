"""The command `fedjax-ssl plan-labels RUN_OR_DATA --budget 40`: choose examples to label next."""

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedjax_ssl import cli, command_line, graph, processor
from fedjax_ssl import config as configs
from fedjax_ssl.cli.run import parse
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.data import Dataset, client_names, natural_names, source_of
from fedjax_ssl.data.dataset import distinct
from fedjax_ssl.data.federation.planned import compared
from fedjax_ssl.data.sites_apart import sites_apart
from fedjax_ssl.errors import UserError, counted, note
from fedjax_ssl.folder import read_run
from fedjax_ssl.folder.files import write_output
from fedjax_ssl.folder.stored_run import refuse_sweep
from fedjax_ssl.plotting import use_matplotlib
from fedjax_ssl.prediction import points_of
from fedjax_ssl.runs.build import federate, load_experiment, load_resolved
from fedjax_ssl.runs.prediction_files import as_csv
from fedjax_ssl.trained.trained_model import load_run

HELP = """Says which examples to label next: those with most influence on all others in XCLP's graph
of nearest neighbours. Writes a table of them, a picture of the coverage over the number of labels,
and for images a sheet per client. Repeat the command when you have more labels.

  RUN    a run folder: the plan compares its training examples by its network's features
  DATA   a folder of images, a table, an .npz file or stored features, with the settings
         --data.X=VALUE that `run` needs"""
_SIDE = 64  # side of a thumbnail, in pixels
_ACROSS = 10  # thumbnails in a row
_LINE = 14  # height of a line of text, in pixels


class Examples(NamedTuple):
    """Training examples that a plan chooses from."""

    dataset: Dataset
    row: Int[np.ndarray, " n"]  # row of the training examples
    client: Int[np.ndarray, " n"]
    client_names: Sequence[str]
    labels: Int[np.ndarray, " n"]  # -1 = no label
    features: Float[np.ndarray, "n d"]
    probabilities: Float[np.ndarray, "n K"] | None


def main(arguments: list[str]) -> int:
    """Plan labels.

    Args:
        arguments: arguments after the subcommand.

    Returns:
        0.

    Raises:
        ConfigError: a setting cannot be used, or nothing can be planned.
    """
    given, rest = _parser().parse_known_args(arguments)
    asked = parse([str(given.path), *rest])
    processor.check_platform()
    command_line.use_compilation_cache()
    with command_line.notes_instead_of_warnings(), naming():
        path = given.path.expanduser()
        refuse_sweep(path)
        if read_run(path).config:
            if asked.settings:
                raise ConfigError(f"--{asked.settings[0][0]} is of the run already; leave it out")
            examples = _of_run(path, given.strategy)
        else:
            examples = _of_data(path, asked.settings, given.strategy)
        _plan(given, examples)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("plan-labels", HELP)
    add = parser.add_argument
    add("path", type=Path, metavar="RUN_OR_DATA", help="see above")
    add("--budget", type=int, metavar="N", help="number of labels in all")
    add("--per-client", type=int, metavar="N", help="most labels of each client")
    strategies = ", ".join(graph.STRATEGIES)
    add(
        "--strategy",
        type=cli.one_of("strategy", graph.STRATEGIES),
        default="influence",
        metavar="NAME",
        help=f"{strategies}; margin needs a run (default: influence)",
    )
    add("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    add(
        "--output",
        type=Path,
        default=Path("plan.csv"),
        metavar="FILE",
        help="table (default: plan.csv)",
    )
    return parser


def _of_run(path: Path, strategy: str) -> Examples:
    """Return the training examples of a run, by client, and the features of its network."""
    model = load_run(path)
    config = model.config
    _refuse_private(config)
    experiment = load_resolved(config)
    federation = federate(experiment, jax.random.key(config.seed))
    dataset = experiment.dataset
    raw = experiment.as_read
    points = jax.device_get(points_of(federation))
    there = points.new < 0
    at_server = np.asarray(federation.server_index)[: int(federation.num_server)]
    server = federation.num_clients + federation.num_new_clients
    row = np.concatenate([points.row[there], at_server])
    client = np.concatenate([points.client[there], np.full(len(at_server), server)])
    known = np.asarray(federation.labels)[at_server]
    names = [*client_names(dataset, federation, config.partition.name == "natural"), "server"]
    inputs = raw.train.x if raw.views is None else raw.train.x[:, 0]
    whose = [names[number] for number in client] if model.scales else None
    features = model.embed(inputs[row], client=whose)
    probabilities = None
    if strategy == "margin":
        probabilities = model.predict(inputs[row], client=whose)
    labels = np.concatenate([points.observed[there], known])
    return Examples(dataset, row, client, names, labels, features, probabilities)


def _of_data(path: Path, settings: list[tuple[str, str]], strategy: str) -> Examples:
    """Return the training examples of files, with inputs in place of features."""
    named = dict(settings)
    source = named.get("data.name") or source_of(path, named.get("data.file_column", "file"))
    config = configs.load(source, [("data.path", str(path)), *settings])
    _refuse_private(config)
    experiment = load_experiment(config)
    dataset = experiment.dataset
    if strategy == "margin":
        raise UserError("strategy 'margin' is of a run's network; give a run folder")
    apart = sites_apart(experiment.as_read)
    if apart is not None and config.data.standardize != "client":
        note(apart.sentence)
    if source != "features":
        note(
            "the plan compares inputs; features of a network are better: plan from a run folder, "
            "or from what `fedjax-ssl features` stored"
        )
    train = dataset.train
    client = np.zeros(len(train), int)
    names: Sequence[str] = ["all"]
    if train.client is not None:
        client = np.unique(train.client, return_inverse=True)[1]
        names = natural_names(dataset)
    inputs = compared(dataset)
    features = np.asarray(inputs.vectors(jnp.asarray(inputs.stored)))
    return Examples(dataset, np.arange(len(train)), client, names, train.y, features, None)


def _refuse_private(config: Any) -> None:
    if config.privacy.name != "none":
        raise ConfigError(
            f"config.privacy.name is {config.privacy.name!r}, but a plan is made of something of "
            "every example, without noise; plan with a run without privacy"
        )


def _plan(given: argparse.Namespace, examples: Examples) -> None:
    """Plan, write the table and the pictures, and print what they are."""
    plan = graph.plan_labels(
        examples.features,
        examples.labels,
        examples.client,
        budget=given.budget,
        per_client=given.per_client,
        strategy=given.strategy,
        probabilities=examples.probabilities,
        seed=given.seed,
    )
    names = np.asarray(examples.client_names, object)
    owner = examples.client[plan.rows]
    row = examples.row[plan.rows]
    coverage = plan.covered + np.cumsum(plan.gain)
    columns: dict[str, Any] = {"order": np.arange(1, len(row) + 1), "client": names[owner]}
    train = examples.dataset.train
    if train.names is not None:
        columns["input"] = train.names[row]
    columns["row"] = row
    if given.strategy == "influence":
        columns |= {"gain": plan.gain, "coverage": coverage}
    written = {given.output: as_csv(columns, "%.6f").encode()}
    labelled = int((examples.labels >= 0).sum())
    shares = np.bincount(owner, minlength=examples.client.max() + 1)[distinct(examples.client)]
    spread = f"{shares.min()} to {shares.max()} of a client"
    if shares.min() == shares.max():
        spread = f"{shares.min()} of each client"
    print(
        f"{counted(len(examples.labels), 'example')} of {counted(len(shares), 'client')}, "
        f"{labelled:,} labelled; planned: {len(row):,}, {spread}"
    )
    if given.strategy == "influence":
        curve = np.concatenate([[plan.covered], coverage])
        written[given.output.with_suffix(".png")] = _coverage_picture(curve, labelled)
        print(
            f"coverage rises from {curve[0]:.1%} to {curve[-1]:.1%}: the first label adds "
            f"{plan.gain[0]:.2%}, the last one {plan.gain[-1]:.2%}"
        )
    if train.x.ndim == 4:
        sheet = given.output.with_name(f"{given.output.stem}_examples.png")
        written[sheet] = _sheet(train.x[row] / examples.dataset.input_max, owner, names)
    for path, content in written.items():
        write_output(path, content)
    print("written:", ", ".join(map(str, written)))


def _coverage_picture(curve: np.ndarray, labelled: int) -> bytes:
    """Draw the coverage over the number of labels; the curve bends where further labels stop paying
    off.
    """
    use_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.plot(labelled + np.arange(len(curve)), 100 * curve, color="#0072B2")
    axes.set_xlabel("labels")
    axes.set_ylabel("coverage, %")
    axes.set_ylim(0)
    axes.grid(alpha=0.25)
    content = io.BytesIO()
    figure.savefig(content)
    return content.getvalue()


def _sheet(images: np.ndarray, owner: np.ndarray, names: np.ndarray) -> bytes:
    """Draw the images, values in [0, 1], client by client, each with its place in the plan."""
    from PIL import Image, ImageDraw

    levels = np.round(255 * np.clip(images, 0, 1)).astype(np.uint8)
    if levels.shape[-1] not in (1, 3):
        levels = levels[..., :1]  # the first of several channels
    block = _SIDE + _LINE + 4
    groups = [np.flatnonzero(owner == number) for number in distinct(owner)]
    height = sum(_LINE + 4 + block * -(-len(group) // _ACROSS) for group in groups)
    sheet = Image.new("RGB", (_ACROSS * (_SIDE + 4) + 4, height + 4), "white")
    draw = ImageDraw.Draw(sheet)
    top = 4
    for group in groups:
        draw.text((4, top), str(names[owner[group[0]]]), fill="black")
        top += _LINE + 4
        for place, number in enumerate(group):
            one = levels[number]
            picture = Image.fromarray(one[..., 0] if one.shape[-1] == 1 else one).convert("RGB")
            picture = picture.resize((_SIDE, _SIDE))
            corner = 4 + place % _ACROSS * (_SIDE + 4), top + place // _ACROSS * block
            draw.text(corner, str(number + 1), fill="black")
            sheet.paste(picture, (corner[0], corner[1] + _LINE))
        top += block * -(-len(group) // _ACROSS)
    content = io.BytesIO()
    sheet.save(content, "PNG")
    return content.getvalue()
