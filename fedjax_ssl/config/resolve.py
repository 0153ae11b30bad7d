"""From a config as a file and the command line left it to one that is checked and complete."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import ml_collections
from flax.traverse_util import flatten_dict

from fedjax_ssl import methods
from fedjax_ssl.checks import Several
from fedjax_ssl.config.choose import choose
from fedjax_ssl.config.fields import (
    CHOICES,
    FIELDS,
    FILLED_IN,
    REGISTRIES,
    check_field,
    get,
    options_of,
)
from fedjax_ssl.data import AUGMENTATIONS, is_own, rounds_of_a_part
from fedjax_ssl.errors import ConfigError, did_you_mean, naming, note
from fedjax_ssl.federated import (
    FEDERATED_OPTIMIZERS,
    OPTIMIZERS,
    LearningRate,
    LocalOptimizer,
    LocalSettings,
    learning_rate_schedule,
    local_optimizer,
    schedule_name,
)
from fedjax_ssl.own_code import import_named
from fedjax_ssl.registry import takes_array

PREDICTORS = ("network", "xclp", "per_client_lp")
# Overriding one of these by another choice leaves options behind that the new one need not take.
_DROPS_OPTIONS = (
    "partition",
    "supervision",
    "augment",
    "strong_augment",
    "optimizer",
    "cohort",
    "federated",
)
_TRACEABLE = ("optimizer.", "federated.", "method.")
# Fields that do nothing unless another has a value, or this one: "this or that" -> the fields.
_NEEDED = {
    "validation data, such as config.data.validation_fraction": "select_from early_stopping.metric",
    "config.data.pools": "data.shuffle_pools",
    "config.partition.parts": "partition.rounds_per_part",
    "config.supervision.labelled_clients or config.supervision.coarse_clients or "
    "config.supervision.set_clients": ("supervision.which"),
    "config.supervision.noise": "supervision.noise_mode",
    "config.optimizer.momentum or another optimizer": (
        "optimizer.nesterov optimizer.keep_state optimizer.average_state"
    ),
    "config.optimizer.schedule": "optimizer.schedule_rounds",
    "config.optimizer.schedule=exponential or config.optimizer.schedule=piecewise": (
        "optimizer.schedule_factor"
    ),
    "config.optimizer.schedule=exponential": "optimizer.schedule_staircase",
    "config.optimizer.schedule=piecewise": "optimizer.schedule_boundaries",
    "config.optimizer.schedule=warmup or config.optimizer.schedule=warmup_cosine": (
        "optimizer.schedule_warmup"
    ),
    "config.optimizer.schedule=linear or config.optimizer.schedule=warmup_cosine": (
        "optimizer.schedule_end"
    ),
    "config.optimizer.keep_state": "optimizer.keep_by",
    "config.loss.name=focal": "loss.gamma",
    "config.tracking.writers=mlflow": "tracking.uri",
    "config.tracking.writers=mlflow or config.tracking.writers=wandb": (
        "tracking.project tracking.offline"
    ),
    "config.prediction.predictors": " ".join(
        name for name in FIELDS if name.startswith("prediction.")
    ),
    "config.prediction.predictors=xclp": (
        "prediction.groups prediction.neighbor_search prediction.protocol"
    ),
    "config.prediction.protocol": "prediction.hamming",
}


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Return a checked copy in which every None that has a common default is filled in.

    If `config.method.name` was overridden, `config.method` is given the settings of that method.
    What the config sets of the other method's is carried, and a note says what.

    Args:
        config: as a config file and the command line left it.

    Returns:
        A locked config.

    Raises:
        ConfigError: naming the field, its value and what is allowed.
    """
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"a config is needed, not {config!r}; fedjax_ssl.load_config(NAME) reads one by its "
            "name"
        )
    resolved = ml_collections.ConfigDict(config.to_dict())
    _refuse_unknown(resolved)
    _take_over_method(resolved)
    resolved.optimizer.schedule = schedule_name(resolved.optimizer.schedule)
    for field, declared in options_of(resolved).items():
        check_field(field, get(resolved, field, None), declared)
    for section in CHOICES:
        _check_options(resolved, section)
    _note_without_effect(resolved)
    if resolved.optimizer.schedule_rounds is None:
        resolved.optimizer.schedule_rounds = max(resolved.rounds, 1)
    if resolved.federated.weighting is None:
        resolved.federated.weighting = "examples" if is_own(resolved.data.name) else "uniform"
    if resolved.federated.devices is None and jax.distributed.is_initialized():
        resolved.federated.devices = jax.device_count()
    elif resolved.federated.devices is None and resolved.federated.reduce == "fast":
        resolved.federated.devices = 1  # their number decides the bits
    for section in FILLED_IN:
        for option, what in CHOICES[section].options(resolved[section].name).items():
            if resolved[section].get(option) is None:  # a sweep replaces what is there
                resolved[section][option] = what.default
    _note_lengths(resolved)
    _check_metrics(resolved)
    _check_validation(resolved)
    _check_client_standardization(resolved)
    _check_prediction(resolved)
    saved_round(resolved)
    federated_optimizer(resolved, resolved.federated.cohort_size)
    _note_own_rate(resolved)
    return resolved.lock()


def _take_over_method(config: ml_collections.ConfigDict) -> None:
    """Give `config.method` the settings of the method that it names, where a file replaced the name
    alone.
    """
    name = config.method.name
    there = {*config.method} - {"name"}
    if there != {*methods.METHODS.options(name)}:
        alike = (one for one in methods.METHODS if there == {*methods.METHODS.options(one)})
        choose(config, "method", name, before=next(alike, name))


def options(section: Any) -> dict[str, Any]:
    """Return the options of a section that were set: everything but `name` that is not None."""
    return {key: value for key, value in section.items() if key != "name" and value is not None}


def federated_optimizer(config: Any, cohort_size: int | None = None) -> Any:
    """Return the federated optimizer that a config names.

    Args:
        config: resolved, or a dictionary like one, in which numbers may be traced.
        cohort_size: clients per round, once it is known.

    Raises:
        ConfigError: a value that it does not take, also one of local training.
    """
    server = config["federated"]
    local = config["optimizer"]
    taken = FEDERATED_OPTIMIZERS.options(server["name"])
    given = (
        {"cohort_size": cohort_size}
        if FEDERATED_OPTIMIZERS.takes(server["name"], "cohort_size")
        else {}
    )
    settings = {name: local.get(name) for name in LocalSettings._fields}
    for name in ("momentum", "nesterov"):
        # those of others are no momentum of plain SGD
        if local["name"] != "sgd" or settings[name] is None:
            settings[name] = OPTIMIZERS.options("sgd")[name].default
    with naming("federated"):
        return FEDERATED_OPTIMIZERS.build(
            server["name"],
            LocalSettings(**settings),
            **{option: server[option] for option in taken},
            **given,
        )


def local_training(config: Any) -> tuple[LocalOptimizer, LearningRate]:
    """Return the local optimizer and the schedule of its rate that a config names; as
    `federated_optimizer`.
    """
    local = config["optimizer"]
    with naming("optimizer"):
        taken = (*OPTIMIZERS.options(local["name"]), "clip_norm")
        optimizer = local_optimizer(
            local["name"], **{name: local[name] for name in taken if local[name] is not None}
        )
        schedule = {name: local[name] for name in local if name.startswith("schedule_")}
        rate = learning_rate_schedule(
            local["schedule"], local["learning_rate"], rounds=config["rounds"], **schedule
        )
    return optimizer, rate


def replace_numbers(
    config: ml_collections.ConfigDict, numbers: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config as a dictionary, with values, which may be traced, in place of real-valued
    settings.

    Args:
        config: resolved.
        numbers: by dotted names of fields.

    Raises:
        ConfigError: there is no such field, or it is not a real number, so that it decides shapes
            or code.
    """
    replaced = config.to_dict()
    real = {
        name for name, value in flatten_dict(replaced, sep=".").items() if isinstance(value, float)
    }
    known = sorted(name for name in real if name.startswith(_TRACEABLE))
    for field, value in numbers.items():
        if field not in known:
            raise ConfigError(
                f"hyperparameter {field!r} is no real-valued setting of this config; these are: "
                f"{known}"
            )
        section, _, name = field.rpartition(".")
        get(replaced, section)[name] = value
    return replaced


def traced_numbers(config: ml_collections.ConfigDict) -> dict[str, float]:
    """Return the numbers of a run that are arguments of its compiled programs; all other settings
    are part of their code.

    A number is one where its parameter is annotated as `float | Array` and it is not 0: 0 often
    leaves something out. Of these, another value needs no other program. Recipes, federated and
    local optimizers have such parameters.

    Args:
        config: resolved.

    Returns:
        Values by dotted names of fields, for `replace_numbers`.
    """
    local: list[Callable[..., Any]] = [local_optimizer, learning_rate_schedule]
    parameters = [
        one
        for builder in local
        for one in inspect.signature(builder, eval_str=True).parameters.values()
    ]
    sections = {
        "optimizer": {one.name for one in parameters if takes_array(one)},
        "federated": set(),
        "method": set(),
    }
    for section, names in sections.items():
        options = REGISTRIES[section].options(config[section].name)
        names |= {name for name, option in options.items() if option.traceable}
    return {
        f"{section}.{name}": config[section][name]
        for section, names in sections.items()
        for name in sorted(names & set(config[section]))
        if isinstance(config[section][name], float) and config[section][name] != 0
    }


def predictors(config: ml_collections.ConfigDict) -> tuple[str, ...]:
    """Names in `config.prediction.predictors`."""
    return tuple(name.strip() for name in config.prediction.predictors.split(",") if name.strip())


def saved_round(config: ml_collections.ConfigDict) -> int | None:
    """Return the round whose clients' models `config.save_clients` keeps; None: of no round.

    Raises:
        ConfigError: the run does not have this round.
    """
    given = config.save_clients
    number = config.rounds if given == "last" else None if given == "" else given
    if number is not None and number not in range(given != "last", config.rounds + 1):
        raise ConfigError(
            f"config.save_clients is {given!r}; allowed: last, or a round from 1 to {config.rounds}"
        )
    return number or None


def _check_options(config: ml_collections.ConfigDict, section: str) -> None:
    registry = CHOICES[section]
    choice = config[section]
    with naming(section):
        known = registry.options(choice.name)
        if section in _DROPS_OPTIONS:
            for option in registry.fields():
                if (
                    option not in known
                    and option not in registry.common
                    and choice[option] is not None
                ):
                    given = f"config.{section}.{option}={choice[option]}"
                    note(f"{given} has no effect: {registry.kind} {choice.name!r} does not take it")
                    choice[option] = None
        taken = {*registry.fields(), *known}
        registry.check(choice.name, [option for option in options(choice) if option in taken])


def _note_lengths(config: ml_collections.ConfigDict) -> None:
    """Says which stages, selections, parts and epochs a run of this length does not come to."""
    rounds = config.rounds
    local = config.optimizer
    name = "coarse_rounds" if "coarse_rounds" in config.method else "warmup_rounds"
    first = config.method.get(name, 0)
    if isinstance(first, int) and 0 < rounds <= first:
        note(
            f"config.rounds is {rounds}, stage 1 alone takes {first} (config.method.{name}): no "
            "stage 2 here"
        )
    if validates(config) and 0 < rounds < config.select_from:
        given = f"config.select_from={config.select_from}"
        note(
            f"{given} comes after the last of {rounds} rounds, whose model is then the selected one"
        )
    parts, each = (config.partition.get(name) for name in ("parts", "rounds_per_part"))
    if rounds and parts is not None and parts > 1:
        reached = -(-rounds // rounds_of_a_part(parts, each, rounds))
        why = f" (config.partition.rounds_per_part is {each})" if each else ""
        if reached < parts:
            note(
                f"{rounds} rounds come to {reached} of the {parts} parts of the unlabelled "
                f"examples{why}"
            )
    if local.local_steps and local.local_epochs != 1:
        given = f"config.optimizer.local_epochs={local.local_epochs}"
        note(
            f"{given} has no effect at the clients: "
            f"config.optimizer.local_steps={local.local_steps}"
        )


def _note_own_rate(config: ml_collections.ConfigDict) -> None:
    """Says where the learning rate of the config is not used."""
    local = config.optimizer
    given = f"config.optimizer.learning_rate={config.optimizer.learning_rate} has no effect"
    if getattr(local_training(config)[0], "own_rate", False):
        note(
            f"{given}: optimizer {local.name!r} has its own; one that is to follow a schedule "
            "takes learning_rate"
        )
    elif ":" in local.schedule:
        note(f"{given}: config.optimizer.schedule={local.schedule} says the rate of every round")


def own_metrics(config: ml_collections.ConfigDict) -> dict[str, Callable[..., Any]]:
    """Return the functions of a user's own in `config.metrics`, by the end of their columns:
    "my:f2" is "f2".
    """
    named = [name for name in config.metrics if ":" in name]
    with naming("metrics"):
        return {name.rpartition(":")[2]: import_named("metric", name) for name in named}


def _check_metrics(config: ml_collections.ConfigDict) -> None:
    """Refuses metrics of one column, and a choice of models by what is no column; fills in the
    direction.
    """
    scores = {
        "accuracy": "",
        "balanced_accuracy": "",
        "loss": "",
        "macro_f1": "f1",
        "ece": "ece",
        "auroc": "auroc",
    }
    own = own_metrics(config)
    section = config.early_stopping
    columns = [
        f"validation_{one}"
        for one in (*scores, *own)
        if scores.get(one, "") in ("", *config.metrics)
    ]
    others = (
        "coarse_accuracy",
        "log_probs",
        *(f"client_accuracy{end}" for end in ("", "_worst_tenth", "_spread")),
    )
    taken = next((one for one in own if one in (*scores, *others)), None)
    near = did_you_mean(section.metric, columns)
    begin = f"config.early_stopping.metric is {section.metric!r}"
    of_own = section.metric.removeprefix("validation_") in own
    wrong: dict[str, object] = {
        f"config.metrics is {tuple(config.metrics)}, where two functions have one name, and so "
        "one column": (len(own) < sum(":" in name for name in config.metrics)),
        f"config.metrics names a function {taken!r}, whose column is there already; call it "
        "otherwise": taken,
        f"{begin}.{near} Allowed with these config.metrics: {', '.join(columns)}": section.metric
        not in columns,
        f"{begin}, a function of your own: give config.early_stopping.direction, maximize or "
        "minimize": (of_own and section.direction is None),
    }
    _refuse(wrong)
    if section.direction is None:
        section.direction = (
            "minimize" if section.metric in ("validation_loss", "validation_ece") else "maximize"
        )


def _check_validation(config: ml_collections.ConfigDict) -> None:
    """Refuses a stop without validation data, and with them a model of stage 1, their candidate,
    not evaluated.
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


def _check_client_standardization(config: ml_collections.ConfigDict) -> None:
    """Refuses what needs inputs as they are stored, or clients that are not the dataset's own."""
    views = [config[section].name for section in ("augment", "strong_augment")]
    partition = config.partition.name
    wrong = {
        f"config.partition.name is {partition!r}, whose clients are not the dataset's": partition
        != "natural",
        f"augmentation {' and '.join(views)} works on stored values": any(
            AUGMENTATIONS.takes(name, "input_max") for name in views
        ),
        "config.data.test_mean or test_std is given": config.data.test_mean or config.data.test_std,
    }
    begin = "config.data.standardize is 'client', but"
    end = "change it, or use standardize='train'"
    by_client = config.data.standardize == "client"
    _refuse({f"{begin} {what}; {end}": by_client and holds for what, holds in wrong.items()})


def _note_without_effect(config: ml_collections.ConfigDict) -> None:
    """Names every setting that was given and does nothing beside the others."""
    for needs, fields in _NEEDED.items():
        if any(_holds(config, one) for one in needs.split(" or ")):
            continue
        for field in fields.split():
            value = get(config, field, None)
            usual = FIELDS[field].default if field in FIELDS else None
            if field == "optimizer.schedule_rounds":  # of a config that is resolved
                usual = max(config.rounds, 1)
            if value not in (None, False, usual):
                note(f"config.{field}={value} has no effect without {needs}")


def _holds(config: ml_collections.ConfigDict, need: str) -> bool:
    if need.startswith("validation data"):
        return validates(config)
    if need == "another optimizer":
        return bool(config.optimizer.name != "sgd")
    field, _, wanted = need.removeprefix("config.").partition("=")
    value = get(config, field, None)
    given = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    return wanted in (given or ()) if wanted else bool(value) and value not in ("none", "constant")


def validates(config: ml_collections.ConfigDict) -> bool:
    """Return whether a resolved config holds validation data out."""
    pools = config.data.pools
    return bool(config.data.validation_fraction or (pools and len(pools) > 1 and pools[1]))


def _check_prediction(config: ml_collections.ConfigDict) -> None:
    section = config.prediction
    names = predictors(config)
    with naming():
        Several(PREDICTORS).check("config.prediction.predictors", names)
    untrained = not config.rounds and not config.start_from
    of_features = {"xclp", "per_client_lp"} & set(names) and section.features == "network"
    wrong = {
        "config.rounds is 0 and config.prediction.predictors names nothing, so there is nothing "
        "to do; train at least one round, or name predictors": not config.rounds and not names,
        "config.prediction.predictors names 'network', whose classifier config.rounds=0 leaves "
        "untrained; train it, give config.start_from, or leave it out": untrained
        and "network" in names,
        "config.prediction.features is 'network', whose weights config.rounds=0 leaves random; "
        "train it, give config.model.weights (efficientnet_b0, resnet18), or use "
        "--config.prediction.features=inputs": (
            of_features and untrained and not config.model.weights
        ),
    }
    of_codes = section.protocol != "none" or section.neighbor_search == "approximate"
    wrong[
        "config.prediction.similarity is 'exact', but protocols and the approximate search of "
        "predictor 'xclp' compare codes; leave it out"
    ] = "xclp" in names and section.similarity == "exact" and of_codes
    for field, exact_only in (("protocol", "none"), ("groups", 1)):
        wrong[
            f"config.prediction.{field} is {section[field]!r} and neighbor_search is "
            "'approximate', which is for one graph of all clients without protocols; use one of "
            "them"
        ] = section.neighbor_search == "approximate" and section[field] != exact_only
    _refuse(wrong)


def _refuse(wrong: Mapping[str, object]) -> None:
    """Raise ConfigError for the first message that holds."""
    for message in (message for message, holds in wrong.items() if holds):
        raise ConfigError(message)


def _refuse_unknown(config: ml_collections.ConfigDict) -> None:
    """Return a config file may unlock the config, to set options of its own choices, and misspell a
    field.
    """
    known = options_of(config)
    unknown = [field for field in flatten_dict(config.to_dict(), sep=".") if field not in known]
    # another method's, where the name was overridden
    if any(field.startswith("method.") for field in unknown):
        for method in methods.available():
            known |= {
                f"method.{setting}": option
                for setting, option in methods.METHODS.options(method).items()
            }
    for field in unknown:
        if field not in known:
            hint = did_you_mean(f"config.{field}", [f"config.{name}" for name in known])
            raise ConfigError(f"unknown field config.{field}.{hint}")
