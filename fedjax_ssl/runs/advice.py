"""Advice before a run starts: settings that cannot work with the data, and settings without
effect.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import ml_collections
import numpy as np
from jaxtyping import Array

from fedjax_ssl import config as configs
from fedjax_ssl import federated, models
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.data import FederatedData, is_own, split_path
from fedjax_ssl.data.federation.federated_data import real_rows
from fedjax_ssl.data.reading.own import some
from fedjax_ssl.data.sites_apart import sites_apart
from fedjax_ssl.errors import counted, note
from fedjax_ssl.federated import Method, ServerState, tree_bytes
from fedjax_ssl.federated.recipe import Needs, in_words
from fedjax_ssl.federated.uploads import UPLOADS
from fedjax_ssl.folder.environment import device_description
from fedjax_ssl.folder.files import bytes_in_words
from fedjax_ssl.methods.around import WRAPPERS
from fedjax_ssl.methods.around.trained_part import REST
from fedjax_ssl.methods.parts.channel_terms import check_channels
from fedjax_ssl.objectives import cross_entropy, supervised_loss
from fedjax_ssl.runs.build import Built, build_method, facts_of

FEW_VALIDATION = 50  # examples, of which fewer choose a round by chance


def check_cohorts(config: ml_collections.ConfigDict, federation: FederatedData) -> None:
    """Refuse a user's own cohort sampler that draws clients which do not exist."""
    if ":" in config.cohort.name:
        facts = facts_of(config, federation)
        options = {**configs.options(config.cohort), "facts": facts}
        with naming("cohort"):
            sizes = federation.num_labelled, federation.num_examples
            federated.check_cohorts(config.cohort.name, options, *sizes, facts.cohort_size)


def check(built: Built) -> None:
    """Refuse a method that does not fit the data, and warn of settings without effect.

    Raises:
        ConfigError: a setting cannot be used with these data.
    """
    config = built.experiment.config
    federation = built.federation
    method = built.method
    if not config.rounds:  # without training, predictors need labels
        recipe = method.recipe._replace(needs=Needs(), stages=(), check=lambda data: [])
        method = method._replace(recipe=recipe)
    labels_by = f"config.supervision.name={config.supervision.name!r}"
    if config.data.split:
        labels_by = f"config.data.split={config.data.split}"
    check_labels(labels_by, config.method.name, method, federation)
    note_hidden_labels(labels_by, config.data.name, federation)
    if (apart := apart_in(built)) is not None:
        note(apart)
    if not config.data.split:
        note_validation(config, federation)
        note_missing_labels(config.supervision.name, config.supervision.labels, federation)
    check_weighting(config.federated.weighting, method, federation)
    check_cohorts(config, federation)
    if config.faults.name == "flip_labels" and not int(federation.num_labelled.sum()):
        raise ConfigError(
            "config.faults.name is 'flip_labels', but no client has class labels that could be "
            "flipped; use flip_signs or scale, or give clients labels (config.supervision)"
        )
    if config.rounds:
        note_loss(built)
    of_clients = (
        config.data.standardize == "client"
        or method.predict_for is not None
        or method.apply is None
    )
    if configs.saved_round(config) and of_clients:
        raise ConfigError(
            f"config.save_clients is {config.save_clients!r}, but clients have models or "
            "inputs of their own, or a network that does not score classes alone; leave it "
            "out"
        )


def apart_in(built: Built) -> str | None:
    """Return a note that sites of a user's own data differ. None if they do not, if they are
    standardized by client, or if clients are private, because the note has their means without
    noise.
    """
    config = built.experiment.config
    if config.privacy.name != "none":
        return None
    natural = config.partition.name == "natural"
    if not is_own(config.data.name) or not natural or config.data.standardize == "client":
        return None
    apart = sites_apart(built.experiment.dataset)
    return None if apart is None else apart.sentence


def note_validation(config: ml_collections.ConfigDict, federation: FederatedData) -> None:
    """Note if too few examples have a label to hold out some for validation.

    Raises:
        ConfigError: the run's early stopping needs them.
    """
    share = config.data.validation_fraction
    held_out = int(federation.num_valid)
    if 0 < held_out < FEW_VALIDATION and is_own(config.data.name):
        note(
            f"the model of a round is chosen by {counted(held_out, 'validation example')}, of "
            "which so few choose by chance; hold more out, or give --data.validation_fraction=0"
        )
    if not share or held_out:
        return
    few = (
        f"config.data.validation_fraction={share:g} gives fewer than "
        f"{max(config.data.fewest_validation, 1)} validation examples"
    )
    if config.early_stopping.patience is not None:
        raise ConfigError(
            f"{few}, so that none is held out and config.early_stopping.patience has nothing to "
            "judge by; leave it out, or hold more out: --data.validation_fraction=0.2"
        )
    note(
        "few labels: no validation set, all of them train, and the model of the last round is "
        f"kept ({few})"
    )


def note_hidden_labels(labels_by: str, dataset: str, federation: FederatedData) -> None:
    """Note how many labels of a user's own data are hidden from training.

    Args:
        labels_by: the setting that hides labels.
        dataset: name of the dataset.
        federation: its labels; not traced.
    """
    dealt = real_rows(federation.index, federation.num_examples)
    there = int((np.asarray(federation.labels)[dealt] >= 0).sum())
    hidden = there - int(np.asarray(federation.num_labelled).sum())
    if hidden > 0 and is_own(dataset):
        seen = there - hidden + int(federation.num_server)
        note(
            f"{labels_by} hides {hidden:,} of your labels from training, so that {seen:,} are "
            "seen; config.supervision.name=given: nothing is hidden"
        )


_COUNTED = {
    "labelled_clients": "clients with class labels",
    "train_examples": "training examples",
    "new_clients": "held-out clients",
}


def describe_start(
    built: Built, split: str, template: ServerState, round: int, path: Path
) -> dict[str, str]:
    """Describe the run that is about to start, a line for each name.

    Args:
        built: the run.
        split: hash of its split.
        template: shapes of its state.
        round: rounds done so far.
        path: its folder.
    """
    config = built.experiment.config
    method = built.method
    mesh = built.execution.mesh
    summary = built.federation.summary()
    sizes = sorted({summary.pop("smallest_client"), summary.pop("largest_client")})
    counts = [
        f"{count:,} {_COUNTED.get(name, name.replace('_', ' '))}"
        for name, count in summary.items()
        if count
    ]
    counts.append(f"{' to '.join(f'{size:,}' for size in sizes)} examples per client")
    alone = " (no federation: scores are means over the clients' models)" * method.recipe.alone
    resumed = f", resumed after round {round}" * bool(round)
    weights = weights_in_words(config.federated.weighting, method)
    parameters = f"{models.count_parameters(template.params):,} parameters"
    if config.model.train != "all":
        rest = models.count_parameters(template.params.get(REST, {}))
        parameters += f", {rest:,} of them not trained: model.train={config.model.train}"
    by_file = ""
    if config.data.split:
        file = split_path(config.data.split, config.seed)
        by_file = f", by {file}: partition, supervision and what data holds out are not used"
    return {
        "device": device_description(1 if mesh is None else mesh.size),
        "data": f"{config.data.name} ({', '.join(counts)})",
        "split": f"{split}{by_file}",
        "method": config.method.name + alone,
        **_wrappers_in_words(config),
        **_uploads_in_words(config),
        "model": f"{config.model.name} ({parameters})",
        "rounds": f"{config.rounds}{resumed}",
        "weights": weights if config.rounds else "no training",
        "folder": str(path),
    }


def _wrappers_in_words(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Return the wrappers that change the method, in words; "" if there are none."""
    named = {name: "config.around" for name in config.around}
    if config.personalize.name != "none":
        named[config.personalize.name] = "config.personalize"
    lines = WRAPPERS.available()
    words = [
        f"{name} ({setting}): {lines.get(name, 'your own').rstrip('.')}"
        for name, setting in named.items()
    ]
    return {"wrapper": "; ".join(words)} if words else {}


def _uploads_in_words(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Say which transforms change uploads; nothing where there is none."""
    lines = UPLOADS.available()
    words = [f"{name}: {lines.get(name, 'your own').rstrip('.')}" for name in config.uploads]
    return {"uploads": "; ".join(words)} if words else {}


def saved_clients(number: int, count: int, template: ServerState, folder: Path) -> str:
    """Return the disk space of the models of a round's clients, in words.

    Args:
        number: the round.
        count: clients of a cohort.
        template: shapes of the run's state.
        folder: where they go.
    """
    size = bytes_in_words(count * tree_bytes((template.params, template.model_state)))
    models = f"models of up to {counted(count, 'client')} are kept of round {number}"
    return f"{models}: {size}, in memory and in {folder}"


def note_loss(built: Built) -> None:
    """Warn if the config names a loss of labelled examples that the method never uses."""
    experiment = built.experiment
    federation = built.federation
    calls = list[None]()
    if experiment.host is not None or supervised_loss(**experiment.config.loss) is cross_entropy:
        return

    def heard(logits: Array, targets: Array) -> Array:
        calls.append(None)
        return cross_entropy(logits, targets)

    how = (experiment, federation, built.execution, built.account)
    method = build_method(*how, loss=heard)
    key = jax.random.key(0)
    if not method.recipe.on_host:
        jax.eval_shape(lambda: method.round(key, method.init(key, federation), federation))
    if not calls:
        name = experiment.config.method.name
        note(
            f"config.loss has no effect: method {name!r} takes no cross-entropy of class labels "
            "that it could replace"
        )


def check_labels(labels_by: str, name: str, method: Method, federation: FederatedData) -> None:
    """Refuse a federation without the labels that the method needs, and warn of classes that its
    labels leave open.

    Args:
        labels_by: the setting that hides labels, for the message.
        name: `config.method.name`, likewise.
        method: method of the run.
        federation: its labels; not traced.

    Raises:
        ConfigError: none of the needed kinds of labels exists, or not all if the method needs all.
    """
    there = federation.kinds()
    kinds, every_one = method.recipe.needs
    if not (set(kinds) <= set(there) if every_one else set(there) & set(kinds)):
        words = in_words(method.recipe.needs)
        raise ConfigError(
            f"method {name!r} learns from {words}; with {labels_by} "
            f"this federation has {in_words(Needs(there, every_one=True))}. The "
            "configs digits, glyphs, mnist, cifar10 and npz put labels where a method wants "
            f"them, for example digits:{name}"
        )
    with naming("supervision"):
        notes = check_channels(federation) if {"coarse", "sets"} & set(kinds) else []
        notes += method.recipe.check(federation)
    if method.recipe.learns_unlabelled and np.array_equal(
        federation.num_labelled, federation.num_examples
    ):
        notes.append(
            f"method {name!r} learns from unlabelled examples, but every client sees the labels "
            "of all its examples; to hide labels: --supervision.name=per_client "
            "--supervision.labels=10"
        )
    for text in notes:
        note(text)


_LABELS_OF_A_CLIENT = ("per_client", "xclp_noniid", "class_pairs", "mixed")


def note_missing_labels(supervision: str, labels: int | None, federation: FederatedData) -> None:
    """Warn if clients have fewer labelled examples, in total or of a class, than the config asks
    for.

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
    "uniform": "every client has the same weight",
    "examples": "a client's weight is its number of examples (McMahan et al. 2017)",
    "labelled": "a client's weight is its number of labelled examples",
}


def weights_in_words(weighting: str, method: Method) -> str:
    """Return how clients are weighted in the average, in words."""
    own_weights = any(one.weigh is not None for one in method.recipe.trainings)
    own = ", unless the method sets weights of its own" * own_weights
    return (
        "no average"
        if method.recipe.alone
        else f"{_WEIGHTS[weighting]}{own} (config.federated.weighting={weighting})"
    )


def large_batches(federation: FederatedData, batch_size: int) -> list[str]:
    """Return a note that no client fills a batch; "" if one does."""
    largest = int(np.asarray(federation.num_examples).max())
    if batch_size <= largest:
        return []
    return [
        f"a batch of {batch_size} (config.optimizer.batch_size) is larger than every client, the "
        f"largest of which has {counted(largest, 'example')}"
    ]


def idle_clients(
    method: Method, federation: FederatedData, names: Sequence[str], batch_size: int
) -> list[str]:
    """Return a note on clients that never train, with the reason; "" if all train, or it is
    unknown.

    Args:
        method: method of the run.
        federation: its clients; not traced.
        names: names of its clients.
        batch_size: `config.optimizer.batch_size`, for the words.
    """
    known = np.asarray(federation.num_labelled)
    if federation.weak is not None:
        known = known + np.asarray(federation.weak.num_examples)
    notes: list[str] = []
    stages = method.recipe.stages
    if not method.recipe.trainings or (known >= batch_size).all():
        return notes
    idle = ~np.asarray(jax.jit(partial(federated.who_trains, stages))(federation))
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
    if weighting != "labelled" or not method.recipe.trains_unlabelled:
        return
    without = (np.asarray(federation.num_examples) > 0) & (np.asarray(federation.num_labelled) == 0)
    if without.any():
        raise ConfigError(
            f"config.federated.weighting is 'labelled', but {without.sum()} of "
            f"{federation.num_clients} clients have no class labels: this method trains them, and "
            "with weight 0 nothing of it would count. Use 'uniform' or 'examples'"
        )
