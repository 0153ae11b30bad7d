"""What every numeric option of a choice may be: one table, checked when a config is resolved, before anything is built.

Numbers of `fedjax_ssl.config.fields.FIELDS` have theirs beside their default. What depends on the data (more classes
than there are, more clients than examples) is checked where the data are known. Options of a choice of the user's own
have no line here: they are any finite number.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.checks import LARGEST_WHOLE, check_numbers, check_whole_numbers


class Range(NamedTuple):
    """What a number, or every number of a tuple, may be."""

    check: Callable[..., None]  # takes `allowed`, and values by name; raises ValueError
    allowed: Any  # the lowest whole number or a pair of them, or an interval
    depth: int = 0  # of tuples around it: 1 for a tuple of numbers

    def words(self) -> str:
        """For help, for example "a number in [0, 1]"."""
        kind = ("whole " if self.check is not check_numbers else "") + "number"
        one = f"a {kind}" if not self.depth else f"{kind}s with commas between, each"
        if self.check is check_numbers:
            return f"{one} in {self.allowed}"
        lowest, highest = self.allowed if isinstance(self.allowed, tuple) else (self.allowed, LARGEST_WHOLE)
        return f"{one} of at least {lowest}" if highest == LARGEST_WHOLE else f"{one} from {lowest} to {highest}"


def _whole_in(allowed: tuple[int, int], /, **given: Any) -> None:
    check_whole_numbers(*allowed, **given)


WEIGHT = Range(check_numbers, "[0, inf)")
POSITIVE = Range(check_numbers, "(0, inf)")
SHARE = Range(check_numbers, "[0, 1]")
BELOW_ONE = Range(check_numbers, "[0, 1)")
FINITE = Range(check_numbers, "(-inf, inf)")
COUNT = Range(check_whole_numbers, 1)
COUNT_OR_NONE = Range(check_whole_numbers, 0)
ANY_WHOLE = Range(_whole_in, (-LARGEST_WHOLE, LARGEST_WHOLE))


def _up_to(highest: int, lowest: int = 1) -> Range:
    return Range(_whole_in, (lowest, highest))


_METHODS = {
    # weights of losses, and what scales something that is added
    **dict.fromkeys(
        (
            *("agreement_weight", "channel_weight", "consistency_weight", "entropy_weight", "fix_weight"),
            *("head_weight", "kl_weight", "l1_weight", "l2_weight", "labelled_weight", "mix_weight"),
            *("projection_weight", "prototype_weight", "pseudo_label_weight", "supervised_weight"),
            *("unlabelled_weight", "vat_weight", "l1", "l2", "eta", "labelled_copies", "unlabelled_rate"),
            *("delta_threshold", "l1_threshold", "proto_noise_std", "smoothing", "kappa"),
        ),
        WEIGHT,
    ),
    **dict.fromkeys(
        (
            *("mix_alpha", "mixup_alpha", "prototype_temperature", "radius", "rho", "similarity_power"),
            *("temperature", "vat_radius"),
        ),
        POSITIVE,
    ),
    **dict.fromkeys(("anchor_confidence", "base_threshold", "largest_threshold", "tail_share", "threshold"), SHARE),
    **dict.fromkeys(("alpha", "clip_eps", "decay", "ema_decay", "global_residual", "local_residual"), BELOW_ONE),
    "psi_factor": Range(check_numbers, "(-1, inf)"),
    "lr_divisor": Range(check_numbers, "[1, inf)"),
    # whole numbers
    **dict.fromkeys(
        (
            *("body_epochs", "coarse_rounds", "head_epochs", "helper_interval", "keep_proto_rounds", "local_steps"),
            *("min_proto_count", "num_neighbors", "num_query", "num_support", "num_unlabelled"),
            *("patience", "ramp_end", "ramp_epochs", "ramp_rounds", "residual_epochs", "residual_rounds"),
            *("schedule_steps", "server_batch_size", "server_epochs", "unlabelled_batch_size"),
            *("unlabelled_epochs", "unlabelled_ratio", "warmup_epochs", "diversity_every"),
        ),
        COUNT,
    ),
    **dict.fromkeys(
        (
            *("pretrain_calls", "ramp_start", "set_size", "tsa_rounds", "unlabel_round"),
            *("warmup_episode", "warmup_rounds", "warmup_steps"),
        ),
        COUNT_OR_NONE,
    ),
    **dict.fromkeys(("num_augmentations", "num_helpers"), _up_to(1000)),
    "num_bits": _up_to(2**20),
    "norm_ord": _up_to(2),
}
_AUGMENTATIONS = {
    **dict.fromkeys(("pixels", "operations"), _up_to(1000, 0)),
    "size": _up_to(10_000),
    "groups": COUNT_OR_NONE,
    "degrees": Range(check_numbers, "[0, 180]"),
    "magnitude": Range(check_numbers, "[0, 10]"),
    **dict.fromkeys(("cutout", "share"), SHARE),
    "value": FINITE,
}
_COUNTS = Range(check_whole_numbers, 0, depth=1)

# section -> option -> range, or the ranges of those choices that mean something else by it
OPTIONS: dict[str, Mapping[str, Range]] = {
    "method": _METHODS,
    "data": {
        "writers": _up_to(1_000_000),
        "seed": COUNT_OR_NONE,
        "examples": _up_to(1_000_000),
        "num_classes": _up_to(1_000_000, 2),
        "input_max": POSITIVE,
        "timeout": POSITIVE,
        "size": _up_to(10_000),
        "channels": _up_to(3),
        **dict.fromkeys(("white", "max_images"), COUNT),
    },
    "partition": {
        **dict.fromkeys(("alpha", "factor"), POSITIVE),
        "skew": SHARE,
        **dict.fromkeys(("classes", "labels_per_class", "max_examples", "shards_per_client"), COUNT),
        **dict.fromkeys(("parts", "rounds_per_part"), COUNT),
        **dict.fromkeys(("balanced", "min_examples", "unlabelled"), COUNT_OR_NONE),
        **dict.fromkeys(("counts", "labelled_counts"), _COUNTS),
        "shares": WEIGHT._replace(depth=1),
        "matrix": WEIGHT._replace(depth=2),
    },
    "supervision": {
        **dict.fromkeys(("labels", "classes", "sets"), COUNT),
        **dict.fromkeys(("server_labels", "coarse_clients", "set_clients"), COUNT_OR_NONE),
        "fraction": Range(check_numbers, "(0, 1]"),
        "overlap": BELOW_ONE,
        "noise": WEIGHT,
        **dict.fromkeys(("label_counts", "set_counts"), _COUNTS),
    },
    "augment": _AUGMENTATIONS,
    "strong_augment": _AUGMENTATIONS,
    "model": {
        **dict.fromkeys(("dropout_rate", "stochastic_depth"), BELOW_ONE),
        "hidden": COUNT._replace(depth=1),
        "pad": _up_to(1000, 0),
        "widen": _up_to(1000),
        "width_factor": POSITIVE,
    },
    "cohort": {"power": WEIGHT},
    "federated": {
        **dict.fromkeys(("mu", "server_learning_rate"), WEIGHT),
        "server_momentum": BELOW_ONE,
        "groups": COUNT,
        "group_sizes": COUNT._replace(depth=1),
    },
}
_OF_ONE = {
    ("method", "fedrgd", "threshold"): WEIGHT,  # above 1 no user learns: its paper's lower bound
    ("method", "fedmatch", "num_helpers"): _up_to(1000, 0),  # none: no loss between clients
    ("supervision", "class_pairs", "labels"): Range(check_whole_numbers, 2),
}


def range_of(section: str, choice: str, option: str, kind: type) -> Range | None:
    """The range of an option.

    Args:
        section: of a config.
        choice: what it names.
        option: of the choice.
        kind: its type in a config.

    Returns:
        None where it is no number and holds none. An option that the table does not have may be any finite number.
    """
    found = _OF_ONE.get((section, choice, option)) or OPTIONS.get(section, {}).get(option)
    if found is None or ":" in choice or (found.depth > 0) != (kind is tuple):  # "module:function": may mean another
        found = {int: ANY_WHOLE, float: FINITE}.get(kind)
    return found


def check_range(name: str, value: Any, allowed: Range) -> None:
    """Raises ValueError for a number outside its range; the message has its name, and its place in a tuple."""
    if not allowed.depth:
        allowed.check(allowed.allowed, **{name: value})
        return
    if not isinstance(value, (tuple, list, np.ndarray)):
        raise ValueError(f"{name} is {value!r}; it must be a tuple of {'tuples' if allowed.depth > 1 else 'numbers'}")
    for place, entry in enumerate(value):
        check_range(f"{name}[{place}]", entry, allowed._replace(depth=allowed.depth - 1))
