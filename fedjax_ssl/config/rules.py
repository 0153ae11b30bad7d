"""Rules between the fields of a config: settings that have no effect next to others, and settings
that exclude each other.
"""

from collections.abc import Callable
from typing import Any

import ml_collections

from fedjax_ssl.checks import Several
from fedjax_ssl.config.configured_optimizers import local_training
from fedjax_ssl.config.fields import get, options_of
from fedjax_ssl.config.sections import VALIDATION
from fedjax_ssl.data import holds_validation, rounds_of_a_part, split_path
from fedjax_ssl.errors import ConfigError, did_you_mean, naming, note
from fedjax_ssl.federated import Facts
from fedjax_ssl.objectives import INVERSE
from fedjax_ssl.own_code import import_named
from fedjax_ssl.registry import contributed

PREDICTORS = ("network", "xclp", "per_client_lp", *contributed("predictor"))
# predictors for which clients send codes or sums of their examples
_SENDING = ("xclp", *contributed("predictor"))
# Columns of validation data, and the name in `config.metrics` that adds them, if any.
_COLUMNS = {
    "accuracy": None,
    "balanced_accuracy": None,
    "loss": None,
    "macro_f1": "f1",
    "ece": "ece",
    "auroc": "auroc",
}
_OTHER_COLUMNS = (
    "coarse_accuracy",
    "log_probs",
    "client_accuracy",
    "client_accuracy_worst_tenth",
    "client_accuracy_spread",
    "client_global_accuracy",
    "client_global_accuracy_worst_tenth",
    "client_gain",
)
# Values by which a field is off.
_NOTHING = (None, False, 0, (), "", "none", "constant")


def validates(config: ml_collections.ConfigDict) -> bool:
    """Return whether a resolved config holds out validation data."""
    if config.data.split:
        return holds_validation(split_path(config.data.split, config.seed))
    pools = config.data.pools
    return bool(config.data.validation_fraction or (pools and len(pools) > 1 and pools[1]))


def predictors(config: ml_collections.ConfigDict) -> tuple[str, ...]:
    """Return the names in `config.prediction.predictors`."""
    return tuple(name.strip() for name in config.prediction.predictors.split(",") if name.strip())


def note_without_effect(config: ml_collections.ConfigDict) -> None:
    """Note every setting that was set and has no effect next to the others, by the needs in its
    declaration.
    """
    for field, option in options_of(config).items():
        usual = option.default
        if field == "optimizer.schedule_rounds":  # only if the config is resolved
            usual = max(config.rounds, 1)
        conditions = option.needs.split(" or ")
        value = get(config, field, None) if option.needs else None
        if value in (None, False, usual) or any(_holds(config, one) for one in conditions):
            continue
        words = (
            "validation data, such as config.data.validation_fraction"
            if option.needs == VALIDATION
            else " or ".join(map(_in_words, conditions))
        )
        note(f"config.{field}={value} has no effect without {words}")


def _in_words(condition: str) -> str:
    """Write a part of `Option.needs` for a message."""
    field, equals, names = condition.partition("=")
    if field.endswith("!"):
        return f"another config.{field[:-1]} than {names.replace('|', ' or ')}"
    return " or ".join(f"config.{field}{equals}{name}" for name in names.split("|"))


def _holds(config: ml_collections.ConfigDict, condition: str) -> bool:
    """Return whether a part of `Option.needs` holds; a missing field excludes nothing."""
    if condition == VALIDATION:
        return validates(config)
    field, equals, names = condition.partition("=")
    value = get(config, field.rstrip("!"), True)
    if value is True or not equals:
        return value not in _NOTHING
    given = value if isinstance(value, tuple) else str(value).split(",")
    there = not {*names.split("|")}.isdisjoint(one.strip() for one in given)
    return there != field.endswith("!")


def note_lengths(config: ml_collections.ConfigDict) -> None:
    """Note stages, selections, parts and epochs that a run of this length does not reach."""
    rounds = config.rounds
    stage = "coarse_rounds" if "coarse_rounds" in config.method else "warmup_rounds"
    first = config.method.get(stage, 0)
    if isinstance(first, int) and 0 < rounds <= first:
        note(
            f"config.rounds is {rounds}, but stage 1 takes {first} rounds "
            f"(config.method.{stage}): stage 2 never begins. Give more rounds, or a shorter stage 1"
        )
    for part in config.method.get("parts", ()):
        joins = config.method.get(part.rpartition(":")[2], {}).get("after", 0)
        if 0 < rounds <= joins:
            note(
                f"config.rounds is {rounds}, and the part {part!r} joins after {joins} "
                f"(config.method.{part.rpartition(':')[2]}.after): it never trains here"
            )
    if validates(config) and 0 < rounds < config.select_from:
        note(
            f"config.select_from={config.select_from} comes after the last of {rounds} rounds, "
            "whose model is then the selected one"
        )
    parts = config.partition.get("parts")
    each = config.partition.get("rounds_per_part")
    if rounds and parts is not None and parts > 1:
        reached = -(-rounds // rounds_of_a_part(parts, each, rounds))
        why = f" (config.partition.rounds_per_part is {each})" if each else ""
        if reached < parts:
            note(
                f"{rounds} rounds come to {reached} of the {parts} parts of the unlabelled "
                f"examples{why}"
            )
    if config.method.name == "alone" and config.federated.name not in ("fedavg", "local"):
        note(
            f"config.federated.name={config.federated.name} has no effect: method 'alone' averages "
            "nothing"
        )
    local = config.optimizer
    if local.local_steps and local.local_epochs != 1:
        note(
            f"config.optimizer.local_epochs={local.local_epochs} has no effect at the clients: "
            f"config.optimizer.local_steps={local.local_steps}"
        )


def note_own_rate(config: ml_collections.ConfigDict, facts: Facts | None) -> None:
    """Note if the config's learning rate is not used.

    Args:
        config: resolved.
        facts: sizes of the run, if known.
    """
    local = config.optimizer
    given = f"config.optimizer.learning_rate={local.learning_rate} has no effect"
    if local_training(config, facts)[0].own_rate:
        note(
            f"{given}: optimizer {local.name!r} has its own; one that is to follow a schedule "
            "takes learning_rate"
        )
    elif ":" in local.schedule:
        note(f"{given}: config.optimizer.schedule={local.schedule} says the rate of every round")


def own_metrics(config: ml_collections.ConfigDict) -> dict[str, Callable[..., Any]]:
    """Return the user's own functions in `config.metrics`, by the end of their columns: "my:f2" is
    "f2".
    """
    named = [name for name in config.metrics if ":" in name]
    with naming("metrics"):
        return {name.rpartition(":")[2]: import_named("metric", name) for name in named}


def check_metrics(config: ml_collections.ConfigDict) -> None:
    """Refuse metrics with the same column, and selection by an unknown column; fill in the
    direction.
    """
    own = own_metrics(config)
    if len(own) < sum(":" in name for name in config.metrics):
        raise ConfigError(
            f"config.metrics is {tuple(config.metrics)}, where two functions have one name, and so "
            "one column"
        )
    for name in own:
        if name in (*_COLUMNS, *_OTHER_COLUMNS):
            raise ConfigError(
                f"config.metrics names a function {name!r}, whose column is there already; call it "
                "otherwise"
            )
    there = [name for name, needed in _COLUMNS.items() if needed in (None, *config.metrics)]
    columns = [f"validation_{name}" for name in (*there, *own)]
    chosen = config.early_stopping.metric
    if chosen not in columns:
        raise ConfigError(
            f"config.early_stopping.metric is {chosen!r}.{did_you_mean(chosen, columns)} Allowed "
            f"with these config.metrics: {', '.join(columns)}"
        )
    if config.early_stopping.direction is not None:
        return
    if chosen.removeprefix("validation_") in own:
        raise ConfigError(
            f"config.early_stopping.metric is {chosen!r}, a function of your own: give "
            "config.early_stopping.direction, maximize or minimize"
        )
    less = chosen in ("validation_loss", "validation_ece")
    config.early_stopping.direction = "minimize" if less else "maximize"


def check_validation(config: ml_collections.ConfigDict) -> None:
    """Refuse early stopping without validation data, and a first stage whose model would not be
    evaluated.
    """
    warmup = config.method.get("warmup_rounds", 0)
    every = config.eval_every
    patience = config.early_stopping.patience
    if patience is not None and not validates(config):
        raise ConfigError(
            f"config.early_stopping.patience is {patience}, but there are no validation data to "
            "judge by (test data must not end a run). Hold some out: "
            "--config.data.validation_fraction=0.1"
        )
    if validates(config) and isinstance(warmup, int) and warmup % every:
        fits = max(n for n in range(1, every) if warmup % n == 0)
        near = max(round(warmup / every), 1) * every
        raise ConfigError(
            f"config.method.warmup_rounds of {config.method.name!r} is {warmup}; with validation "
            f"data it must be a multiple of config.eval_every ({every}), so that the model of "
            f"stage 1 is evaluated: use config.eval_every={fits} or "
            f"config.method.warmup_rounds={near}"
        )


def check_client_standardization(config: ml_collections.ConfigDict) -> None:
    """Refuse other statistics, and clients that are not the dataset's own, with standardization by
    client.
    """
    if config.data.standardize != "client":
        return
    partition = config.partition.name
    if partition != "natural":
        wrong = f"config.partition.name is {partition!r}, whose clients are not the dataset's"
    elif config.data.test_mean or config.data.test_std:
        wrong = "config.data.test_mean or test_std is given"
    else:
        return
    raise ConfigError(
        f"config.data.standardize is 'client', but {wrong}; change it, or use standardize='train'"
    )


def divides_by_shares(config: ml_collections.ConfigDict) -> bool:
    """Return whether clients with sets divide their class shares by those of all clients' examples
    (FedUL).
    """
    of_all = config.supervision.get("test_prior") != "uniform"
    return of_all and bool(config.method.get("use_test_prior", True))


def check_privacy(config: ml_collections.ConfigDict) -> None:
    """Refuse settings that reveal more of the clients' data than the noisy sums, or the noisy
    steps.
    """
    if config.privacy.name == "none":
        return
    of_examples = config.privacy.name == "dp_sgd"
    loss = config.loss
    inverse = loss.class_weights is not None and tuple(loss.class_weights) == INVERSE
    sent = [name for name in predictors(config) if name in _SENDING]
    supervision = config.supervision
    # Only the data say whether a "given" supervision has sets.
    in_sets = supervision.name == "sets" or supervision.get("set_clients") not in (0, None)
    wrong = (
        (
            config.federated.weighting != "uniform",
            f"config.federated.weighting={config.federated.weighting} makes weights of the "
            "clients' data; use uniform",
        ),
        (
            config.cohort.name != "uniform" and not of_examples,
            f"config.cohort.name={config.cohort.name} draws cohorts of which nobody knows what "
            "they cost; use uniform, every client with one probability",
        ),
        (
            inverse or loss.logit_adjustment,
            "config.loss.class_weights=inverse and logit_adjustment count the labels of all "
            "clients; leave them out",
        ),
        (
            in_sets and divides_by_shares(config),
            "clients divide the class shares of their sets by those of all clients' examples; use "
            "config.supervision.test_prior=uniform",
        ),
        (
            config.federated.name == "feddyn" and not of_examples,
            "config.federated.name=feddyn tells every client the mean number of examples of all "
            "clients; use another one, such as fedavg",
        ),
        (
            config.data.standardize == "train",
            "config.data.standardize=train has a mean and a deviation of all clients' examples; "
            "use none, or give config.data.mean and config.data.std",
        ),
        (
            config.data.standardize == "client" and of_examples,
            "config.data.standardize=client has a mean and a deviation of all examples of a "
            "client; give config.data.mean and config.data.std, or use none",
        ),
        (
            config.save_clients is not None and not of_examples,
            "config.save_clients keeps models of single clients; leave it out",
        ),
        (
            config.supervision.name == "planned",
            "config.supervision.name=planned makes its plan of something of every example, without "
            "noise; use total or per_client",
        ),
        (
            bool(sent),
            f"config.prediction.predictors names {', '.join(sent)}, for which clients send "
            "something of every example, once and without noise; leave that out",
        ),
    )
    for is_wrong, why in wrong:
        if is_wrong:
            raise ConfigError(f"config.privacy.name is {config.privacy.name!r}, but {why}")


def check_prediction(config: ml_collections.ConfigDict) -> None:
    """Refuse predictions by an untrained network, and searches or protocols that do not fit
    together.
    """
    section = config.prediction
    names = predictors(config)
    with naming():
        Several(PREDICTORS).check("config.prediction.predictors", names)
    if not config.rounds and not names:
        raise ConfigError(
            "config.rounds is 0 and config.prediction.predictors names nothing, so there is "
            "nothing to do; train at least one round, or name predictors"
        )
    untrained = not config.rounds and not config.start_from
    if untrained and "network" in names:
        raise ConfigError(
            "config.prediction.predictors names 'network', whose classifier config.rounds=0 leaves "
            "untrained; train it, give config.start_from, or leave it out"
        )
    of_features = {*names} - {"network"} and section.features == "network"
    # The features of a linear network are its inputs.
    trained = config.model.weights or config.model.name == "linear"
    if untrained and of_features and not trained:
        raise ConfigError(
            "config.prediction.features is 'network', whose weights config.rounds=0 leaves random; "
            "train it, give config.model.weights (of a network with published ones), or use "
            "--config.prediction.features=inputs"
        )
    if "xclp" in names and section.similarity == "exact" and section.protocol != "none":
        raise ConfigError(
            "config.prediction.similarity is 'exact', but the protocols of predictor 'xclp' "
            "compare codes; leave it out"
        )


def saved_round(config: ml_collections.ConfigDict) -> int | None:
    """Return the round whose clients' models `config.save_clients` keeps; None: it keeps none.

    Raises:
        ConfigError: the run has no such round.
    """
    given = config.save_clients
    if given in (None, ""):
        return None
    if given == "last":
        return config.rounds or None
    if given not in range(1, config.rounds + 1):
        raise ConfigError(
            f"config.save_clients is {given!r}; allowed: last, or a round from 1 to {config.rounds}"
        )
    return int(given)
