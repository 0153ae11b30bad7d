"""Notes before a run's first block: facts about its data, and settings that are allowed one by one
but that few people mean together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import jax
import numpy as np

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.data.federation.report import untested
from fedjax_ssl.data.reading.own import some
from fedjax_ssl.errors import counted
from fedjax_ssl.federated import ServerState
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.folder.citations import CITATIONS_FILE, TOOL, entries, used_in
from fedjax_ssl.models.pretrained import IMAGENET_MEAN, IMAGENET_STD
from fedjax_ssl.runs import advice, own_sources
from fedjax_ssl.runs.active_run import Run
from fedjax_ssl.runs.build import Built, fault_of
from fedjax_ssl.runs.first_weights import round_of
from fedjax_ssl.runs.model_file import TrainedModelError
from fedjax_ssl.runs.summary import asks_for_selection

_LISTED = 10_000  # most clients in partition.txt


def tell_start(run: Run) -> None:
    """Print and store the facts of a run before it starts."""
    say = run.progress.note
    told = advice.describe_start(run.built, run.program.split, run.template, run.round, run.path)
    run.progress.start(told)
    for line in start_notes(run):
        say(line)
    if run.folder is None:
        return
    if run.round == 0:
        federation = run.built.federation
        table = data.report(
            federation,
            run.built.experiment.dataset.class_names,
            run.names[: federation.num_clients],
            max_rows=_LISTED,
        )
        run.folder.write("partition.txt", table + "\n")
        cited = entries((TOOL, *used_in(run.config.to_dict())))
        run.folder.write(CITATIONS_FILE, "\n\n".join(cited) + "\n")


def quiet_notes(run: Run) -> Iterator[str]:
    """List the notes that are shown even if a run prints no report: in a sweep, in a notebook."""
    yield from _of_settings(run)
    if run.privacy is not None and run.config.rounds:
        yield from run.privacy.beyond()


def _of_settings(run: Run) -> Iterator[str]:
    yield from about_data(run.built, run.template, run.names)
    yield from about_training(run.built)
    yield from own_sources.registered_in_words(run.config)


def start_notes(run: Run) -> Iterator[str]:
    """List the notes before the first block."""
    config = run.config
    built = run.built
    yield built.experiment.standardization
    yield from _of_settings(run)
    if (fault := fault_of(config)) is not None:
        yield fault.in_words(run.program.inputs.key, run.names[: built.federation.num_clients])
    if run.privacy is not None and config.rounds:
        yield from run.privacy.lines(run.template.params)
    number = configs.saved_round(config)
    if number:
        yield from _notes_of_saved_clients(run, number)
    if config.rounds:
        yield from _rounds_of_server(built)
        batch_size = config.optimizer.batch_size
        yield from advice.large_batches(built.federation, batch_size)
        yield from advice.idle_clients(built.method, built.federation, run.names, batch_size)
    if run.feed is not None:
        yield run.feed.describe()


def _rounds_of_server(built: Built) -> Iterator[str]:
    """Note the rounds in which only the server trains, if clients train in others."""
    recipe = built.method.recipe
    if not any(stage.clients for stage in recipe.stages):
        return
    rounds = built.experiment.config.rounds
    ends = [*recipe.starts[1:], rounds]
    for stage, start, planned in zip(recipe.stages, recipe.starts, ends, strict=True):
        end = min(planned, rounds)
        if not stage.clients and start < end:
            when = f"round {end}" if end == start + 1 else f"rounds {start + 1} to {end}"
            yield f"in {when} only the server trains, on its own labelled examples"


def _notes_of_saved_clients(run: Run, number: int) -> Iterator[str]:
    """Note the disk space of clients' models, or why they can no longer be saved."""
    if number > run.round:
        count = run.config.federated.cohort_size or run.built.federation.num_clients
        yield advice.saved_clients(number, count, run.template, run.path / "clients")
    elif Checkpoints(run.path, folder="clients").latest() != number:
        yield (
            f"config.save_clients names round {number}, which this folder is past without "
            "them: give another --workdir"
        )


def about_data(built: Built, template: ServerState, names: Sequence[str]) -> list[str]:
    """Find data that are unused or untested, or single in a batch with batch norm, a sentence each.

    Args:
        built: the run.
        template: shapes of its state.
        names: names of its clients.
    """
    experiment = built.experiment
    dataset = experiment.dataset
    section = experiment.config.data
    given = {one.name: section[one.name] for one in fields(data.HeldOut)}
    if given["left_out_client"] is not None:
        known = data.natural_names(dataset)
        given["left_out_client"] = data.client_number(known, given["left_out_client"])
    found = data.HeldOut(**given).unused_own_test(dataset)
    found += untested(built.federation, dataset.class_names, names)
    found += _unlabelled_classes(built.federation, dataset.class_names)
    if (gone := np.flatnonzero(np.asarray(built.federation.num_examples) == 0)).size:
        what = counted(len(gone), "client has", "clients have")
        found.append(
            f"{what} no training example, as the server holds all of them, and never trains"
        )
    if jax.tree.leaves(template.model_state):
        found += _alone(built, names)
    return found


def _unlabelled_classes(federation: data.FederatedData, names: Sequence[str]) -> list[str]:
    """Find classes without any visible label if others have some."""
    observed = np.asarray(federation.observed)
    counts = np.bincount(observed[observed >= 0], minlength=len(names))
    without = np.flatnonzero(counts == 0)
    if not 0 < len(without) < len(names):
        return []
    return [
        f"{counted(len(without), 'class', 'classes')} without a label in training "
        f"({some(without, names)}): nothing says what they look like"
    ]


def _alone(built: Built, names: Sequence[str]) -> list[str]:
    """Find clients with a batch, or a last batch, of one example."""
    federation = built.federation
    size = built.experiment.config.optimizer.batch_size
    labelled = np.asarray(federation.num_labelled)
    alone = (labelled == 1) | ((labelled > 0) & (size == 1))
    # for an image, batch norm averages over many pixels
    if len(built.experiment.dataset.input_shape) == 1:
        alone |= (labelled > 0) & (labelled % size == 1)
    if not alone.any():
        return []
    return [
        f"batch norm sees one labelled example alone in some batches of "
        f"{counted(int(alone.sum()), 'client')} ({some(np.flatnonzero(alone), names)}), and learns "
        f"nothing from it: change config.optimizer.batch_size ({size}), or give "
        "config.model.norm=none"
    ]


def about_training(built: Built) -> Iterator[str]:
    """Find settings of training that may be unintended, a sentence each.

    Args:
        built: the run.
    """
    if jax.config.read("jax_enable_x64"):
        yield (
            "JAX_ENABLE_X64 is set: float64 in places, and other draws of the same seed than "
            "without it"
        )
    if not built.experiment.config.rounds:
        return
    yield from _round_of_start(built)
    yield from _kept_round(built)
    yield from _own_models_at_start(built)
    yield from _random_rest(built)
    yield from _inputs_of_weights(built)


def _round_of_start(built: Built) -> Iterator[str]:
    """Note the round of another run from which the first weights come."""
    place = built.experiment.config.start_from
    if not place:
        return
    folder = Path(place).expanduser()
    if not (folder / "model.json").exists():  # a file, or meanwhile gone
        return
    try:
        round = round_of(folder)
    except TrainedModelError:  # its checkpoints are gone, and a resumed run does not need them
        return
    yield f"config.start_from takes the model of {place} after {round}"


def _kept_round(built: Built) -> Iterator[str]:
    """Note the round whose models are kept if clients have their own models, because validation
    examples do not score these.
    """
    method = built.method
    if (
        method.predict_for is None
        or method.recipe.alone
        or not built.federation.valid_index.shape[0]
    ):
        return
    what = "validation examples are scored by the common model alone, not by clients' own models"
    if asks_for_selection(built.experiment.config):
        yield f"{what}: the round in best/ may be a poor one for these"
    else:
        yield f"{what}: the models of the last round are kept, and no round is chosen"


def _own_models_at_start(built: Built) -> Iterator[str]:
    """Note the start of clients' own models if the run starts from another run's weights."""
    method = built.method
    if (
        built.experiment.config.start_from
        and method.predict_for is not None
        and not method.recipe.alone
    ):
        yield (
            "config.start_from gives the common model alone: clients' own models start as a copy "
            "of it"
        )


def _random_rest(built: Built) -> Iterator[str]:
    """Note if only a part of a network with random weights is trained."""
    config = built.experiment.config
    model = config.model
    if model.train != "all" and not (
        model.get("weights") or config.start_from or ":" in model.name
    ):
        yield (
            f"config.model.train={model.train} trains a part of {model.name!r}, and the rest of it "
            "stays as random as it starts: give --model.weights or --start_from"
        )


def _inputs_of_weights(built: Built) -> Iterator[str]:
    """Note if inputs are standardized differently than for published weights."""
    config = built.experiment.config
    if not config.model.get("weights") or config.data.mean is not None:
        return
    dataset = built.experiment.dataset
    if (dataset.mean, dataset.std) != (IMAGENET_MEAN, IMAGENET_STD):
        yield (
            f"the usual weights of {config.model.name} were trained on inputs standardized "
            f"otherwise: --data.mean='{IMAGENET_MEAN}' --data.std='{IMAGENET_STD}'"
        )
