"""What a run tells its user before it starts: settings that cannot work with these data, and those
that have no effect.
"""

from collections.abc import Sequence

import jax
import ml_collections
import numpy as np
from jaxtyping import Array

from fedjax_ssl import config as configs
from fedjax_ssl import federated
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.data import FederatedData
from fedjax_ssl.data.reading.problems import some
from fedjax_ssl.errors import note
from fedjax_ssl.federated import Method
from fedjax_ssl.methods.parts.channel_terms import check_channels
from fedjax_ssl.objectives import cross_entropy, supervised_loss
from fedjax_ssl.runs.build import Experiment, build_method, cohort_size_of


def check_cohorts(config: ml_collections.ConfigDict, federation: FederatedData) -> None:
    """Refuse a sampler of a user's own that draws clients which are not there."""
    if ":" in config.cohort.name:
        size = cohort_size_of(config, federation.num_clients)
        with naming("cohort"):
            sizes = federation.num_labelled, federation.num_examples
            federated.check_cohorts(
                config.cohort.name, configs.options(config.cohort), *sizes, size
            )


def note_loss(experiment: Experiment, federation: FederatedData) -> None:
    """Warn where a loss of labelled examples is named that the method never takes."""
    section = experiment.config.loss
    calls = list[None]()
    if experiment.host is not None or supervised_loss(**section) is cross_entropy:
        return

    def heard(logits: Array, targets: Array) -> Array:
        calls.append(None)
        return cross_entropy(logits, targets)

    method = build_method(experiment, federation, loss=heard)
    key = jax.random.key(0)
    if not method.on_host:
        jax.eval_shape(lambda: method.round(key, method.init(key, federation), federation))
    if not calls:
        name = experiment.config.method.name
        note(
            f"config.loss has no effect: method {name!r} takes no cross-entropy of class labels "
            "that it could replace"
        )


KINDS = {
    "labels": "class labels at clients",
    "server": "class labels at the server",
    "coarse": "coarse labels",
    "sets": "sets with known class shares",
}


def check_labels(supervision: str, name: str, method: Method, federation: FederatedData) -> None:
    """Refuse a federation without what the method learns from; warn of what its labels leave open.

    Args:
        supervision: `config.supervision.name`, for the message.
        name: `config.method.name`, likewise.
        method: method of the run.
        federation: its labels; not traced.

    Raises:
        ConfigError: there is none of the kinds of labels that the method needs, or not all where it
            needs all.
    """
    there = federation.kinds()
    needs = method.needs
    if not (set(needs) <= set(there) if method.needs_all else set(there) & set(needs)):
        words = (" and " if method.needs_all else " or ").join(KINDS[kind] for kind in needs)
        raise ConfigError(
            f"method {name!r} learns from {words}; with config.supervision.name={supervision!r} "
            "this federation has "
            f"{' and '.join(KINDS[kind] for kind in there) or 'no label of any kind'}. The "
            "configs digits, glyphs, mnist, cifar10 and npz put labels where a method wants "
            f"them, for example digits:{name}"
        )
    with naming("supervision"):
        notes = check_channels(federation) if {"coarse", "sets"} & set(needs) else []
        notes += [] if method.check is None else method.check(federation)
    if method.learns_unlabelled and (federation.num_labelled == federation.num_examples).all():
        notes.append(
            f"method {name!r} learns from unlabelled examples, but every client sees the labels "
            "of all its examples; to hide labels: --supervision.name=per_client "
            "--supervision.labels=10"
        )
    for text in notes:
        note(text)


_LABELS_OF_A_CLIENT = ("per_client", "xclp_noniid", "class_pairs", "mixed")


def note_missing_labels(supervision: str, labels: int | None, federation: FederatedData) -> None:
    """Warn where clients have fewer labelled examples, or of a class, than were asked for.

    Args:
        supervision: `config.supervision.name`, which says whether the number is each client's, or
            each class's there.
        labels: `config.supervision.labels`.
        federation: its labels; not traced.
    """
    there = np.asarray(federation.num_labelled)
    if (
        labels is not None
        and supervision in _LABELS_OF_A_CLIENT
        and (short := there[(there > 0) & (there < labels)]).size
    ):
        text = (
            f"config.supervision.labels={labels} labels of a client: {short.size} of "
            f"{(there > 0).sum()} clients have"
        )
        note(f"{text} fewer, from {short.min():,} to {short.max():,}")
    if supervision != "per_class" or labels is None:
        return
    observed = np.asarray(federation.observed_by_clients)
    counts = np.stack([(observed == k).sum(axis=1) for k in range(federation.num_classes)])
    asked = counts[:, np.asarray(federation.num_labelled) > 0]
    if (asked < labels).any():
        note(
            f"config.supervision.labels asks for {labels} labelled examples of every class, but "
            f"clients with labels have fewer of {(asked < labels).sum()} of {asked.size} classes, "
            f"{(asked == 0).sum()} of them without any"
        )


_WEIGHTS = {
    "uniform": "all clients count alike",
    "examples": "clients count by their number of examples (McMahan et al. 2017)",
    "labelled": "clients count by their number of labelled examples",
}


def weights_in_words(weighting: str, method: Method) -> str:
    """Say how clients are weighted in the average."""
    own = ", where the method has no weights of its own" * method.own_weights
    return (
        "no average"
        if method.alone
        else f"{_WEIGHTS[weighting]}{own}: config.federated.weighting={weighting}"
    )


def idle_clients(
    method: Method, federation: FederatedData, names: Sequence[str], batch_size: int
) -> list[str]:
    """Say in a line which clients never train, and why; nothing where all do, or nobody can tell.

    Args:
        method: method of the run.
        federation: its clients; not traced.
        names: names of its clients.
        batch_size: `config.optimizer.batch_size`, for the words.
    """
    known = np.asarray(
        federation.num_labelled + (0 if federation.weak is None else federation.weak.num_examples)
    )
    notes: list[str] = []
    if method.trains is None or (known >= batch_size).all():
        return notes
    idle = ~np.asarray(jax.jit(method.trains)(federation))
    said = [
        f"{len(rows)} {why} ({some(rows, names)})"
        for why, rows in (
            ("without a label that the method learns from", np.flatnonzero(idle & (known == 0))),
            (
                f"with less than a batch of {batch_size} (config.optimizer.batch_size)",
                np.flatnonzero(idle & (known > 0)),
            ),
        )
        if len(rows)
    ]
    if said:
        notes.append(f"{idle.sum()} of {idle.size} clients never train: {', '.join(said)}")
    return notes


def check_weighting(weighting: str, method: Method, federation: FederatedData) -> None:
    """Refuse weights of 0 for clients that train.

    Args:
        weighting: `config.federated.weighting`.
        method: method of the run.
        federation: its clients; not traced.

    Raises:
        ConfigError: clients are weighted by their class labels, and some that the method trains
            have none.
    """
    if weighting != "labelled" or not method.trains_unlabelled:
        return
    without = (np.asarray(federation.num_examples) > 0) & (np.asarray(federation.num_labelled) == 0)
    if without.any():
        raise ConfigError(
            f"config.federated.weighting is 'labelled', but {without.sum()} of "
            f"{federation.num_clients} clients have no class labels: this method trains them, and "
            "with weight 0 nothing of it would count. Use 'uniform' or 'examples'"
        )
