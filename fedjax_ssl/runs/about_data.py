"""What a run tells its user about its data before it starts."""

from collections.abc import Sequence
from dataclasses import fields

import jax
import numpy as np

from fedjax_ssl import data
from fedjax_ssl.data.federation.report import untested
from fedjax_ssl.data.reading.own import some
from fedjax_ssl.errors import counted
from fedjax_ssl.federated import ServerState
from fedjax_ssl.runs.build import Built


def about_data(built: Built, template: ServerState, names: Sequence[str]) -> list[str]:
    """Find what of the data is not used, not tested, or seen alone by batch norm, a sentence each.

    Args:
        built: the run.
        template: shapes of its state.
        names: of its clients.
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
    """Find classes of which nobody sees a label where others have some."""
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
    """Find clients whose batches, or the last of them, have one example."""
    federation = built.federation
    size = built.experiment.config.optimizer.batch_size
    labelled = np.asarray(federation.num_labelled)
    alone = (labelled == 1) | ((labelled > 0) & (size == 1))
    if len(built.experiment.dataset.input_shape) == 1:  # of an image batch norm sees many pixels
        alone |= (labelled > 0) & (labelled % size == 1)
    if not alone.any():
        return []
    return [
        f"batch norm sees one labelled example alone in some batches of "
        f"{counted(int(alone.sum()), 'client')} ({some(np.flatnonzero(alone), names)}), and learns "
        f"nothing from it: change config.optimizer.batch_size ({size}), or give "
        "config.model.norm=none"
    ]
