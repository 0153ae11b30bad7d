"""What `data check` proposes: the method for the labels that are there, and a command that runs."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.errors import UserError, counted

SERVERS = ("server", "central", "coordinator", "zentrale")  # names of who has labels for all
MANY_UNLABELLED = 0.25  # from this share on they are worth a method that learns from them


class Proposal(NamedTuple):
    """A method for a dataset.

    Attributes:
        method: its name.
        why: the labels that it is proposed for, and what it does with them.
        labels: where a config puts labels, as `fedjax_ssl.presets.source` takes it; "": as given.
    """

    method: str
    why: str
    labels: str = ""


class Command(NamedTuple):
    """A run that was rehearsed.

    Attributes:
        proposal: its method.
        config: name of the config, with its argument.
        settings: by field, as text.
    """

    proposal: Proposal
    config: str
    settings: Mapping[str, str]


def methods_for(dataset: data.Dataset) -> list[Proposal]:
    """List methods for the labels of a dataset, the best one first; none: nobody knows a label.

    Example:
        >>> from fedjax_ssl.cli.proposal import methods_for
        >>> [one.method for one in methods_for(fs.load_dataset("digits"))]
        ['fedavg']
    """
    train = dataset.train
    labelled = train.y >= 0
    count = counted(len(train), "training example")
    missing = int((~labelled).sum())
    has_coarse = train.coarse is not None and bool((train.coarse >= 0).any())
    has_sets = train.set is not None and dataset.set_shares is not None
    weak = ["coarse labels"] * has_coarse + ["class shares of sets"] * has_sets
    found = []
    if weak and (labelled.any() or has_coarse) and (has_sets or dataset.correspondence is not None):
        known = " and ".join(["class labels"] * bool(labelled.any()) + weak)
        found.append(Proposal("mixed", f"there are {known}, and it learns from all of these"))
    if has_coarse and labelled.any():
        why = "there are coarse labels, and it estimates how they go with the classes"
        found.append(Proposal("fedmt", why))
    if has_sets:
        found.append(Proposal("fedul", "it learns classes from the class shares of sets"))
    # Sets of which nobody knows the shares tell nothing.
    place = "all" if train.set is not None and dataset.set_shares is None else ""
    if labelled.any() and missing >= MANY_UNLABELLED * len(train):
        without = f"{missing:,} of {count} have no label"
        if _only_server(dataset):
            why = f"{without}, and all labels are at the server"
            found.append(Proposal("semifl", f"{why}: clients label their own examples"))
        why = f"{without}: it carries labels to the examples that are alike"
        found.append(Proposal("xclp", why, place))
    if labelled.any():
        why = f"{missing:,} of {count} have no label" if missing else "every example has its label"
        found.append(Proposal("fedavg", why, place))
    return found


def _only_server(dataset: data.Dataset) -> bool:
    """Tell whether all labels are at one client that is called a server."""
    train = dataset.train
    if train.client is None or dataset.client_names is None:
        return False
    holders = np.unique(train.client[train.y >= 0])
    return len(holders) == 1 and dataset.client_names[holders[0]].casefold() in SERVERS


def propose(
    dataset: data.Dataset, config: str, settings: Mapping[str, str], standardize: bool
) -> Command | str:
    """Find a command that runs: its data are read, its clients drawn, its method built and traced.

    Args:
        dataset: the user's.
        config: name of the config that trains on it.
        settings: that read it, by field.
        standardize: inputs should be standardized by client.

    Returns:
        The command; or, where none runs, what keeps the best one from running.
    """
    proposals = methods_for(dataset)
    if not proposals:
        return (
            "no training example has a label, and there are no sets with class shares; give "
            "labels to some examples of every class, or class shares as data.proportions"
        )
    why_not = ""
    # What is given up last: the method.
    for proposal in proposals:
        for more in _further_settings(dataset, standardize):
            argument = proposal.method
            if proposal.labels:
                argument += f",{proposal.labels}"
            plain = argument == "fedavg"
            command = Command(
                proposal, config if plain else f"{config}:{argument}", {**settings, **more}
            )
            problem = rehearse(command)
            if not problem:
                return command
            why_not = why_not or problem
    return why_not


def _further_settings(dataset: data.Dataset, standardize: bool) -> Iterator[dict[str, str]]:
    """Give settings for what the dataset does not say itself: clients, test examples, and how
    inputs are standardized.
    """
    clients: dict[str, str] = {}
    if dataset.train.client is None:
        number = min(10, max(len(dataset.train) // 20, 2))
        clients = {"partition.name": "iid", "partition.num_clients": str(number)}
    by_client = {"data.client_test_fraction": "0.2"}
    of_labels = {"data.test_fraction": "0.2"}
    only_predicted = {"prediction.predictors": "network"}
    tests = [by_client, of_labels, by_client | only_predicted]
    if dataset.train.client is None or 2 * (dataset.train.y < 0).sum() >= len(dataset.train):
        tests = [of_labels, by_client, by_client | only_predicted]
    if dataset.test is not None:
        tests = [{}, only_predicted]
    for test in tests:
        if standardize:
            yield clients | test | {"data.standardize": "client"}
        yield clients | test


def rehearse(command: Command) -> str:
    """Do all of a run but its training: "" where nothing keeps it from running, else why not."""
    from fedjax_ssl.runs import advice
    from fedjax_ssl.runs.shared import Shared

    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = configs.resolve(configs.load(command.config, command.settings))
            built = Shared().build(config)
            advice.check(built)
            method = built.method
            key = jax.random.key(0)
            if not method.on_host and built.experiment.host is None:
                start = jax.eval_shape(method.init, key, built.federation)
                jax.eval_shape(method.round, key, start, built.federation)
    except (UserError, ValueError, data.DatasetUnavailable) as error:
        return str(error)
    finally:
        logging.disable(logging.NOTSET)
    return ""
