"""What a run tells its user about its training before it starts: settings that are right each by
itself and that together do what few people mean.
"""

from collections.abc import Iterator
from pathlib import Path

import jax

from fedjax_ssl.models.pretrained import IMAGENET_MEAN, IMAGENET_STD
from fedjax_ssl.runs.build import Built
from fedjax_ssl.runs.model_file import TrainedModelError
from fedjax_ssl.runs.start import round_of
from fedjax_ssl.runs.summary import asks_for_selection


def about_training(built: Built) -> Iterator[str]:
    """Find what of the training may not be meant, a sentence each.

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
    """Say which round of another run the first weights are of."""
    place = built.experiment.config.start_from
    if not place:
        return
    folder = Path(place).expanduser()
    if not (folder / "model.json").exists():  # a file, or gone since
        return
    try:
        round = round_of(folder)
    except TrainedModelError:  # its checkpoints are gone, which a run that goes on does without
        return
    yield f"config.start_from takes the model of {place} after {round}"


def _kept_round(built: Built) -> Iterator[str]:
    """Say which round's models are kept where clients have models of their own, which are not
    scored on validation examples.
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
    """Say what clients' own models start from, where another run's weights are the start."""
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
    """Say where a part is trained of a network of the package that starts from nothing."""
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
    """Say where inputs are standardized otherwise than those that published weights were trained
    on.
    """
    config = built.experiment.config
    if not config.model.get("weights") or config.data.mean is not None:
        return
    dataset = built.experiment.dataset
    if (dataset.mean, dataset.std) != (IMAGENET_MEAN, IMAGENET_STD):
        yield (
            f"the usual weights of {config.model.name} were trained on inputs standardized "
            f"otherwise: --data.mean='{IMAGENET_MEAN}' --data.std='{IMAGENET_STD}'"
        )
