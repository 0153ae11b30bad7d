"""Proposals of `data check`: a method for the labels in the data, and a command that runs."""

import logging
import shlex
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.errors import UserError, counted

if TYPE_CHECKING:
    from fedjax_ssl.runs.shared import Shared

SERVER = "server"  # name of a client that has labels for all
FEW_TESTED = 100  # labelled test examples, of which fewer say little in one run
SMALL = 32  # side of images for a quick run
TESTED = 0.2  # share of the examples that is held out for testing
MANY_UNLABELLED = 0.25  # from this share on they are worth a method that learns from them


class Labels(NamedTuple):
    """Counts and kinds of the labels of training examples.

    Attributes:
        examples: number of examples.
        labelled: number of examples with a class label.
        only_server: all labelled examples are at the server.
        coarse: some have a coarse label.
        tied: the correspondence of coarse labels and classes is known.
        sets: some are in sets with known class shares.
        blind_sets: some are in sets with unknown class shares.
    """

    examples: int
    labelled: int
    only_server: bool = False
    coarse: bool = False
    tied: bool = False
    sets: bool = False
    blind_sets: bool = False

    @property
    def missing(self) -> int:
        """Number of examples without a class label."""
        return self.examples - self.labelled

    @property
    def many_missing(self) -> bool:
        """Whether the unlabelled examples are worth a method that learns from them."""
        return self.missing >= MANY_UNLABELLED * self.examples

    @property
    def weak(self) -> bool:
        """Whether weak labels say something about the classes."""
        return self.sets or (self.coarse and self.tied)


class Proposal(NamedTuple):
    """A method for a dataset.

    Attributes:
        method: its name.
        why: labels for which it is proposed, and their use.
        labels: place of the labels, for `fedjax_ssl.presets.source`; "": as in the data.
        settings: settings, by field.
    """

    method: str
    why: str
    labels: str = ""
    settings: Mapping[str, str] = MappingProxyType({})


class Command(NamedTuple):
    """A run that was tried without training.

    Attributes:
        proposal: the proposed method.
        config: name of the config, with its argument.
        settings: settings as text, by field.
        baseline: a method that learns from the class labels alone; "": it is one, or none runs.
    """

    proposal: Proposal
    config: str
    settings: Mapping[str, str]
    baseline: str = ""

    def line(self, workdir: str) -> str:
        """Write the command as typed."""
        told = [f"--{field}={value}" for field, value in self.settings.items()]
        return shlex.join(["fedjax-ssl", "run", self.config, *told, "--workdir", workdir])

    def sweep(self, workdir: str) -> str:
        """Write the same run with five random seeds, and with the baseline, as typed."""
        # A comma in a value of a sweep would separate two values.
        told = [
            f"--{field}='{value}'" if "," in value else f"--{field}={value}"
            for field, value in self.settings.items()
        ]
        if self.baseline:
            told += ["--set", f"method.name={self.baseline},{self.proposal.method}"]
        more = ["--seeds", "5", "--workdir", workdir]
        return shlex.join(["fedjax-ssl", "sweep", self.config, *told, *more])

    def quick(self, workdir: str) -> str:
        """Write the run on small images with a small network."""
        small = {"data.size": str(SMALL), "model.name": "mlp", "rounds": "20"}
        return self._replace(settings={**self.settings, **small}).line(workdir)


def labels_of(dataset: data.Dataset) -> Labels:
    """Count the labels of a dataset's training examples."""
    train = dataset.train
    return Labels(
        len(train),
        int((train.y >= 0).sum()),
        only_server=_only_server(dataset),
        coarse=train.coarse is not None and bool((train.coarse >= 0).any()),
        tied=dataset.correspondence is not None,
        sets=train.set is not None and dataset.set_shares is not None,
        blind_sets=train.set is not None and dataset.set_shares is None,
    )


def labels_in(federation: data.FederatedData) -> Labels:
    """Count the visible labels of a federation's clients and server."""
    summary = federation.summary()
    kinds = federation.kinds()
    return Labels(
        summary["train_examples"] + summary["server_examples"],
        summary["labelled_examples"] + summary["server_examples"],
        only_server="server" in kinds and "labels" not in kinds,
        coarse="coarse" in kinds,
        tied=True,
        sets="sets" in kinds,
    )


def methods_for(labels: Labels) -> list[Proposal]:
    """List methods for the labels in the data, the best one first; empty without any label.

    Example:
        >>> from fedjax_ssl.cli.proposal import labels_of, methods_for
        >>> [one.method for one in methods_for(labels_of(fs.load_dataset("digits")))]
        ['fedavg']
    """
    some = bool(labels.labelled)
    count = counted(labels.examples, "training example")
    weak = ["coarse labels"] * labels.coarse + ["class shares of sets"] * labels.sets
    found = []
    if labels.weak and (some or labels.coarse) and not labels.only_server:
        known = " and ".join(["class labels"] * some + weak)
        found.append(Proposal("mixed", f"there are {known}, and it learns from all of these"))
    if labels.coarse and some:
        why = "there are coarse labels, and it estimates how they go with the classes"
        found.append(Proposal("fedmt", why))
    if labels.sets:
        found.append(Proposal("fedul", "it learns classes from the class shares of sets"))
    # Sets with unknown class shares carry no information.
    place = "all" if labels.blind_sets else ""
    if some and labels.many_missing:
        without = f"{labels.missing:,} of {count} have no label"
        if labels.only_server:
            why = f"{without}, and all labels are at the server"
            found.append(Proposal("semifl", f"{why}: clients label their own examples"))
        why = f"{without}: it carries labels to the examples that are alike"
        found.append(Proposal("xclp", why, place))
    if some:
        why = "every example has its label"
        if labels.missing:
            why = f"the labelled-only baseline; {labels.missing:,} of {count} have no label"
        found.append(Proposal("fedavg", why, place))
    return found


def composition_for(labels: Labels, rounds: int) -> Proposal | None:
    """Return a composition of terms for the labels in the data; None if one term covers all.

    Args:
        labels: labels in the data.
        rounds: rounds of the run; pseudo-labels beside weak labels are in its second half.
    """
    if labels.only_server or not labels.labelled or not labels.many_missing:
        return None
    place = "all" if labels.blind_sets else ""
    if labels.weak:
        kinds = "class labels" + ", coarse labels" * labels.coarse + ", sets" * labels.sets
        why = f"{kinds}, each through its channel, and labels that travel over a graph later on"
        later = {"method.graph.after": str(rounds // 2)} if rounds > 1 else {}
        return Proposal("compose", why, place, {"method.parts": "channels,graph", **later})
    parts = {"method.parts": "supervised,fixmatch,prototypes"}
    return Proposal("compose", "FixMatch plus class prototypes of other clients", place, parts)


def _only_server(dataset: data.Dataset) -> bool:
    """Return whether all labels are at a single client with a server's name."""
    train = dataset.train
    if train.client is None or dataset.client_names is None:
        return False
    holders = np.unique(train.client[train.y >= 0])
    return len(holders) == 1 and dataset.client_names[holders[0]].casefold() == SERVER


def propose(
    dataset: data.Dataset, config: str, settings: Mapping[str, str], standardize: bool
) -> tuple[Command | str, Command | None]:
    """Find a command that runs: its data are read, its clients drawn, its method built and traced.

    Args:
        dataset: the user's dataset.
        config: name of the config that trains on it.
        settings: settings that read the dataset, by field.
        standardize: inputs should be standardized by client.

    Returns:
        (the command, or the reason why the best one does not run; a composition for the same labels
            and data, or None).
    """
    labels = labels_of(dataset)
    proposals = methods_for(labels)
    why_not = (
        "no training example has a label, and there are no sets with class shares; give "
        "labels to some examples of every class, or class shares as data.proportions"
    )
    if proposals:
        why_not = ""
    settings = {**settings, **_further_settings(dataset, labels, standardize)}
    for proposal in proposals:
        command = _command(proposal, config, settings)
        problem = rehearse(command)
        if not problem:
            baseline = _command(proposals[-1], config, settings)
            name = baseline.proposal.method
            if name == "fedavg" != proposal.method and not rehearse(baseline, traced=False):
                command = command._replace(baseline=name)
            return command, _composed(labels, config, command.settings)
        why_not = why_not or problem
    return why_not, None


def labels_tested(dataset: data.Dataset) -> int:
    """Estimate the labelled test examples of a run from `propose`."""
    if dataset.test is not None:
        return int((dataset.test.y >= 0).sum())
    return round(TESTED * labels_of(dataset).labelled)


def _command(proposal: Proposal, config: str, settings: Mapping[str, str]) -> Command:
    argument = proposal.method
    if proposal.labels:
        argument += f",{proposal.labels}"
    named = config if argument == "fedavg" else f"{config}:{argument}"
    head = {"model.start": "zero"} if config == "features" else {}
    return Command(proposal, named, {**settings, **head, **proposal.settings})


def _composed(labels: Labels, config: str, settings: Mapping[str, str]) -> Command | None:
    """Return the composition for these labels, if it can be built on the data of a command."""
    proposal = composition_for(labels, configs.load(config).rounds)
    if proposal is None:
        return None
    command = _command(proposal, config, settings)
    return None if rehearse(command, traced=False) else command


def _further_settings(dataset: data.Dataset, labels: Labels, standardize: bool) -> dict[str, str]:
    """Give settings for what the dataset does not say itself: clients, test examples, and how
    inputs are standardized.
    """
    settings: dict[str, str] = {}
    if dataset.train.client is None:
        number = min(10, max(len(dataset.train) // 20, 2))
        settings |= {"partition.name": "iid", "partition.num_clients": str(number)}
    if dataset.test is None:
        # of few labels a share is drawn by class, of clients' examples blindly
        few = dataset.train.client is None or 2 * labels.missing >= labels.examples
        of_labels = few and labels.labelled > 0
        settings["data.test_fraction" if of_labels else "data.client_test_fraction"] = str(TESTED)
    if not labels.labelled:
        settings["prediction.predictors"] = "network"
    if standardize:
        settings["data.standardize"] = "client"
    return settings


def rehearse(command: Command, shared: "Shared | None" = None, traced: bool = True) -> str:
    """Do everything of a run except training; return "" if it would run, otherwise the reason.

    Args:
        command: the run.
        shared: shared parts of the runs in this process.
        traced: trace a round too.
    """
    from fedjax_ssl.runs import advice
    from fedjax_ssl.runs.shared import Shared

    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = configs.resolve(configs.load(command.config, command.settings))
            built = (shared or Shared()).build(config)
            advice.check(built)
            method = built.method
            key = jax.random.key(0)
            if traced and not method.recipe.on_host and built.experiment.host is None:
                start = jax.eval_shape(method.init, key, built.federation)
                jax.eval_shape(method.round, key, start, built.federation)
    except (UserError, ValueError, data.DatasetUnavailable) as error:
        return str(error)
    finally:
        logging.disable(logging.NOTSET)
    return ""
