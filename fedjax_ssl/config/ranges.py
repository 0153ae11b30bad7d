"""Ranges of options whose builders do not declare theirs yet; to be moved there one by one, see `fedjax_ssl.checks`."""

from collections.abc import Mapping

from fedjax_ssl.checks import Declaration, Each, In, Whole

WEIGHT, POSITIVE, SHARE, BELOW_ONE = In("[0, inf)"), In("(0, inf)"), In("[0, 1]"), In("[0, 1)")
FINITE, COUNT, COUNT_OR_NONE = In("(-inf, inf)"), Whole(1), Whole(0)


def _up_to(highest: int, lowest: int = 1) -> Whole:
    return Whole(lowest, highest)


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
    "psi_factor": In("(-1, inf)"),
    "lr_divisor": In("[1, inf)"),
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
_COUNTS = Each(Whole(0))

# section -> option -> range, or the ranges of those choices that mean something else by it
OPTIONS: dict[str, Mapping[str, Declaration]] = {
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
    "cohort": {"power": WEIGHT},
}
_OF_ONE = {
    ("method", "fedrgd", "threshold"): WEIGHT,  # above 1 no user learns: its paper's lower bound
    ("method", "fedmatch", "num_helpers"): _up_to(1000, 0),  # none: no loss between clients
}


def range_of(section: str, choice: str, option: str) -> Declaration | None:
    """Finds the range of an option; None where the table has none, or the choice is the user's own."""
    if ":" in choice:
        return None
    return _OF_ONE.get((section, choice, option)) or OPTIONS.get(section, {}).get(option)
