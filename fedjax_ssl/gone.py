"""Settings of earlier versions, and their replacements: the table of CHANGELOG.md as data."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Gone(NamedTuple):
    """A setting that an earlier version had, or one value of it."""

    now: str  # the replacement, or the behaviour now, in words
    plain: tuple[Any, ...] = ()
    # ^ values with the meaning of `now`: a stored config may have them


_SHARED = "clients share every class of which they have a label"
_PROXYFL = "ProxyFL's parts are those of method.name=proxyfl"
_ALONE = "a part is one loss without batches, server or average; write method.name=fixmatch"
_AS_CODE = "ProxyFL is that of the authors' code"
_DIVERSITY = "gradient diversity is no longer measured"
_ARRIVALS = "the server averages the uploads that arrive by their weights"
_ON_TIME = "write config.around=asynchronous: uploads come late, and a buffer is an argument of it"
_NO_CLOCK = "rounds have no simulated time"
_ONE_SUM = "noise is added to updates alone"
_FREEMATCH = "the rule of thresholds that follow training is method.threshold_rule=freematch"
_OPTAX = "write optax:NAME or optax.contrib:NAME, a function of optax with its own options"
_OF_OPTAX = (
    *("adabelief", "adadelta", "adafactor", "adagrad", "adamax", "adamaxw", "adamw", "adan"),
    *("amsgrad", "fromage", "lamb", "lars", "lion", "nadam", "nadamw", "novograd"),
    *("optimistic_adam_v2", "optimistic_gradient_descent", "radam", "sign_sgd", "signum", "sm3"),
    *("yogi", "acprop", "ademamix", "adopt", "cocob", "dadapt_adamw", "dog", "dowg", "madgrad"),
    *("muon", "prodigy", "simplified_ademamix"),
)
_FIXED = "the threshold is fixed"
# Settings of methods with a threshold rule.
_OF_RULES = {
    "threshold_scope": Gone("what a threshold rule has learned is sent and averaged", ("global",)),
    "threshold_floor": Gone("thresholds have no floor", (0.0,)),
    "threshold_ceiling": Gone("the mean confidence has no ceiling", (1.0,)),
    "fairness_weight": Gone("FreeMatch's fairness has the weight 0.001", (0.001,)),
    "warm_up": Gone(_FREEMATCH, (True,)),
    "deviations": Gone(_FREEMATCH, (2.0,)),
    "alignment": Gone(_FREEMATCH, ("uniform",)),
    "threshold_rule=flexmatch": Gone(_FREEMATCH),
    "threshold_rule=softmatch": Gone(_FREEMATCH),
}
_WITH_RULES = (
    *("fixmatch", "uda", "mixmatch", "vat", "pi_model", "pseudo_label"),
    *("sage", "proxyfl"),
)

_TUNED = (
    "method.name=alone with rounds=1 and start_from=FOLDER of the run lets each client tune a copy "
    "of its model; optimizer.local_epochs says how long"
)
_MLFLOW = "MLflow is no viewer any more; write a callback that logs there"
_LORA = "LoRA is a function that a network of your own calls; see docs/pretrained.md"

_OF_PAPER = "an augmentation has the operations of its paper"

# By field; a method's own setting by "METHOD.SETTING", and a single value by "FIELD=VALUE".
GONE = {
    **{
        f"{method}.server_turn": Gone("the server trains before the clients", ("before",))
        for method in (*_WITH_RULES[:6], "mean_teacher")
    },
    **{
        f"personalize.{setting}": Gone(_TUNED, (None,))
        for setting in ("epochs", "steps", "learning_rate")
    },
    "uploads=drop_non_finite": Gone(
        "every upload with a number that is not finite is left out",
        (("drop_non_finite",), ["drop_non_finite"]),
    ),
    "around=none": Gone("no wrapper is the empty tuple, config.around=()", (("none",), ["none"])),
    "cbafed.tail_share": Gone("a class with less than 0.03 is a tail class", (0.03,)),
    "cbafed.residual_epochs": Gone("local residuals are 5 epochs apart", (5,)),
    "cbafed.residual_rounds": Gone("global residuals are 5 rounds apart", (5,)),
    "cbafed.unlabelled_epochs": Gone("clients without labels train for one epoch", (1,)),
    "cbafed.unlabelled_rate": Gone("clients without labels have 2/3 of the rate", (2 / 3,)),
    **{
        f"{method}.{setting}": entry
        for method in _WITH_RULES
        for setting, entry in _OF_RULES.items()
    },
    **{
        f"{method}.{setting}": Gone(_FIXED, (value,))
        for method in ("sage", "proxyfl")
        for setting, value in (("threshold_rule", "fixed"), ("threshold_decay", 0.999))
    },
    "proxyfl.variant": Gone(_AS_CODE, ("code",)),
    "proxyfl.projection": Gone(_AS_CODE, (None, True)),
    "proxyfl.tuning_anchor": Gone(_AS_CODE, (None, "client")),
    "sage.contrast_weight": Gone(_PROXYFL, (0.0,)),
    "sage.tuning_epochs": Gone(_PROXYFL, (0,)),
    **{f"{method}.contrast_weight": Gone(_PROXYFL, (0.0,)) for method in ("fixmatch", "uda")},
    **{f"{method}.tuning_epochs": Gone(_PROXYFL, (0,)) for method in ("fixmatch", "uda")},
    **{
        f"compose.fixmatch.{setting}": entry
        for setting, entry in {
            "unlabelled_ratio": Gone("write config.method.unlabelled_ratio"),
            "unlabelled_weight": Gone("write config.method.fixmatch.weight", (1.0,)),
            "labelled_weight": Gone("write config.method.supervised.weight", (1.0,)),
            "augment_labelled": Gone(_ALONE, (True,)),
            "labelled_too": Gone(_ALONE, (False,)),
            "ema_decay": Gone(_ALONE, (0.0,)),
            "server_batch_size": Gone(_ALONE, (100,)),
            "server_epochs": Gone(_ALONE, (1,)),
        }.items()
    },
    "compose.prototypes.proto_noise_std": Gone("write method.name=protofssl", (0.0,)),
    "mixed.l1": Gone("method.name=fedul has it", (0.0,)),
    "xclp.lost_before": Gone(
        "write config.participation.lost with config.participation.lost_when=start", (0.0,)
    ),
    "xclp.lost_after": Gone(
        "write config.participation.lost with config.participation.lost_when=codes", (0.0,)
    ),
    "participation.weights": Gone(_ARRIVALS, ("renormalise",)),
    "participation.commit": Gone(
        "a client that is lost keeps the state from before the round", ("ack",)
    ),
    "participation.slow": Gone("write config.around=slow_clients", (None,)),
    "participation.work": Gone("write config.around=slow_clients", (None,)),
    **{
        f"participation.{setting}": Gone(_ON_TIME, (None,))
        for setting in ("delay", "longest", "late", "buffer")
    },
    **{
        f"participation.{setting}": Gone(_NO_CLOCK, (None,))
        for setting in ("seconds_per_step", "seconds_per_byte", "deadline")
    },
    "fedmatch.preset=streaming_alt": Gone(
        "write paper with method.supervised_weight=1 and method.delta_threshold=1e-5"
    ),
    "optimizer.keep_by": Gone("FedRGD keeps momentum by slot, all others by client", ("client",)),
    "federated.reduce=fixed": Gone("write ordered"),
    "fedmatch.helper_hold": Gone("helpers serve one round", ("one_round",)),
    "fedmatch.tie": Gone("of classes with as many votes the lowest counts", ("lowest_index",)),
    "fedmatch.noise": Gone("the image of noise is truncated to [0, 1]", ("truncated",)),
    "fedmatch.evaluate_sparse": Gone("small weights of psi count as 0 in evaluation", (True,)),
    "fedmatch.s2c_lossy": Gone("clients start from the whole model", (False,)),
    "fedmatch.first_contact": Gone("a first contact costs a whole model", ("dense",)),
    "fedmatch.c2s_send_sparsified": Gone("uploads have the raw values of psi", (False,)),
    "fedmatch.encoding": Gone("every message has its shortest form", ("smallest",)),
    "fedmatch.lr_schedule=global": Gone("write client or none"),
    "fedmatch.lr_divisor": Gone("the learning rate is divided by 3", (3.0,)),
    "prototypes.min_proto_count": Gone(_SHARED, (1,)),
    "protofssl.min_proto_count": Gone(_SHARED, (1,)),
    "protofssl.proto_refresh": Gone("clients share prototypes after their training", ("end",)),
    "protofssl.unlabel_loss": Gone("the loss of unlabelled examples is cross-entropy", ("ce",)),
    "protofssl.stop_gradient_pseudo_label": Gone("method.absent_classes says", (False,)),
    "protofssl.warmup_episode": Gone("unlabelled examples count in every step", (0,)),
    "protofssl.eval_bank": Gone("prototypes of the newest two rounds predict", ("two_rounds",)),
    "protofssl.helpers": Gone("the prototypes of single clients are sent", ("clients",)),
    "mean_teacher.predict_with": Gone("the teacher predicts", ("teacher",)),
    "privacy.means_clip": Gone(_ONE_SUM, (1.0,)),
    "privacy.means_share": Gone(_ONE_SUM, (0.5,)),
    "protofssl.l2": Gone("write config.optimizer.weight_decay", (0.0,)),
    "fedmt.fallback": Gone(
        "a class without a confident example has the frequencies of the client's labels", ("prior",)
    ),
    "fedmt.smoothing": Gone("estimates are not smoothed", (0.0,)),
    "fedmt.estimate_scope": Gone("every client estimates its own correspondence", ("client",)),
    "fedrgd.consistency": Gone(
        "the strong view learns the pseudo-labels of the weak one", ("cross_view",)
    ),
    "fedrgd.lr_schedule=reference_fast": Gone("write plain, the cosine over the run, or run"),
    "fedrgd.schedule_steps": Gone("the cosine is as long as the run", (None,)),
    "fedrgd.first_period_extra_step": Gone("all rounds have local_steps steps", (False,)),
    "fedrgd.replica_same_batches": Gone("every group has a replica of its own", (False,)),
    "fedrgd.bn_stats": Gone("running statistics are those of the server", ("server",)),
    "fedrgd.diversity": Gone(_DIVERSITY, ("updates",)),
    "fedrgd.diversity_every": Gone(_DIVERSITY, (1,)),
    "fedrgd.norm_ord": Gone(_DIVERSITY, (2,)),
    "fedrgd.squared": Gone(_DIVERSITY, (True,)),
    "fedrgd.include_server": Gone(_DIVERSITY, (True,)),
    "fedrgd.exclude_norm": Gone(_DIVERSITY, (False,)),
    "data.source": Gone(
        "a published dataset has one form; others are read by tfds:NAME and hf:NAME",
        ("auto", "original"),
    ),
    "data.form": Gone(
        "a dataset has one form; write data.name=femnist_leaf for LEAF's files, and "
        "data.name=folder for folders",
        (None, "fedjax", "pickles"),
    ),
    "data.name=huggingface": Gone("write data.name=hf:FOLDER, without data.path"),
    "data.name=omniglot": Gone("write data.name=tfds:omniglot; its clients are not the drawers"),
    "data.name=cifar100_federated": Gone(
        "write data.name=cifar100 with a partition; its clients are not read any more"
    ),
    "data.unlabelled_split": Gone("write data.name=stl10, or a source of your own", (None,)),
    "data.coarse_key": Gone("write a source of your own, or a table with coarse", (None,)),
    "data.unlabelled": Gone("the images without a label are read", (None, True)),
    "data.name=stand_in": Gone("in a clone, data.name=experiments.papers.stand_in:stand_in"),
    "data.max_levels": Gone("a column holds at most 50 words", (None, 50)),
    "data.timeout": Gone("a download that is silent for 20 seconds is given up", (None, 20.0)),
    "partition.name=circulant": Gone("write class_counts, with numbers of examples"),
    "partition.shares": Gone("write class_counts, with numbers of examples", (None,)),
    "partition.matrix": Gone("FedMatch's tasks are those of ten classes", (None,)),
    "partition.factor": Gone("a client asks for 80 times as much of its two classes", (None, 80.0)),
    "partition.reuse": Gone("no example is dealt twice", (None, False)),
    "partition.own_part": Gone("the part is that of the client's size", (None, "size")),
    **{
        f"{section}.{setting}": entry
        for section in ("augment", "strong_augment")
        for setting, entry in {
            "name=randaugment_uda": Gone("write fixmatch"),
            "name=randaugment": Gone("write fixmatch"),
            "name=semifl": Gone("write fixmatch"),
            "operations": Gone(_OF_PAPER, (None,)),
            "cutout": Gone(_OF_PAPER, (None, 0.5)),
            "share": Gone("an eighth of the side is the most", (None, 0.125)),
            "value": Gone("shift fills in 0, translate grey", (None,)),
            "groups": Gone("16 parts of a batch draw operations of their own", (None, 16)),
            "magnitude": Gone("write fixmatch", (None, 4.0)),
        }.items()
    },
    "data.name=emnist": Gone("write data.name=tfds:emnist"),
    "data.kind": Gone("write data.name=tfds:emnist", (None, "byclass")),
    "data.enlarged": Gone("the validation images are not used", (None, False)),
    "data.extra": Gone("the easier examples are not read", (None, False)),
    "tracking.uri": Gone(_MLFLOW, (None,)),
    "supervision.noise_mode": Gone("noise is relative to a share", (None, "relative")),
    "strong_augment.fixed_cutout": Gone("the cutout has a uniform side", (None, False)),
    "augment.fixed_cutout": Gone("the cutout has a uniform side", (None, False)),
    "supervision.protocol=drawn": Gone("write dealt, which has the same expected shares"),
    "supervision.protocol=clean": Gone("write equal, which uses every example"),
    **{
        f"model.name={name}": Gone(
            f"write a network of your own, or features of --encoder timm:{theirs}"
        )
        for name, theirs in {
            "resnet50": "resnet50",
            "efficientnet_lite0": "tf_efficientnet_lite0",
            "vit_s16": "vit_small_patch16_224",
            "vit_b16": "vit_base_patch16_224",
        }.items()
    },
    "model.train=lora": Gone(_LORA),
    "model.lora_rank": Gone(_LORA, (4,)),
    "model.lora_layers": Gone(_LORA, ("*",)),
    "model.lora_scale": Gone(_LORA, (1.0,)),
    "tracking.writers=mlflow": Gone(_MLFLOW),
    **{f"optimizer.name={name}": Gone(_OPTAX) for name in _OF_OPTAX},
    **{f"federated.optimizer={name}": Gone(_OPTAX) for name in _OF_OPTAX},
    "prediction.neighbor_search": Gone("neighbours are always searched exactly", ("exact",)),
}


# Values of removed settings with the meaning of now, by the name in their section.
_PLAIN: dict[str, dict[str, float]] = {
    "operations": {
        "fixmatch": 2,
        "randaugment_sage": 2,
        "randaugment_fedrgd": 2,
        "randaugment_fl2": 3,
        "randaugment_fedmatch": 6,
    },
    "value": {"shift": 0.0, "crop_flip": 0.0, "translate": 0.5},
}

COMMANDS = {
    "completion": "`fedjax-ssl run NAME --help all` lists every field with its values, `fedjax-ssl "
    "list KIND` the names",
}


def gone(field: str, value: Any, method: str) -> Gone | None:
    """Return the entry of a removed field, or of its removed value; None: it still exists.

    Args:
        field: dotted name, as in a config.
        value: its value.
        method: name of the config's method.
    """
    names = [field]
    if field.startswith("method."):
        setting = field.removeprefix("method.")
        # A part of a composition already has its name in front.
        names = [f"{method}.{setting}", *[setting] * ("." in setting)]
    values = value if isinstance(value, (tuple, list)) else (value,)
    entries = (GONE.get(name) or GONE.get(f"{name}={one}") for name in names for one in values)
    return next(filter(None, entries), None)


def sentence(field: str, value: Any, method: str) -> str:
    """Return the message for a removed setting; "": it still exists."""
    found = gone(field, value, method)
    return f"config.{field}={value} is gone: {found.now}" if found else ""


def words_of(name: str) -> str:
    """Return a sentence for each removed setting of this name, in any section, with a space before
    it; may be "".
    """
    fields = dict[str, str]()
    for field, entry in GONE.items():
        if field.rpartition(".")[2] == name:
            fields.setdefault(entry.now, field)
    return "".join(f" The setting {field} is gone: {now}." for now, field in fields.items())


def without_gone(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored config without removed fields whose value means the behaviour now."""
    method = config.get("method")
    name = str(method.get("name", "")) if isinstance(method, Mapping) else ""
    return dict(_without_gone(config, name, ""))


def _without_gone(
    section: Mapping[str, Any], method: str, prefix: str
) -> Iterator[tuple[str, Any]]:
    for own, value in section.items():
        field = f"{prefix}{own}"
        if isinstance(value, Mapping):
            yield own, dict(_without_gone(value, method, f"{field}."))
            continue
        found = gone(field, value, method)
        name = section.get("name")
        by_name = _PLAIN.get(own, {}).get(name) if isinstance(name, str) else None
        if found is None or value not in (*found.plain, *[by_name] * (by_name is not None)):
            yield own, value
        elif field not in GONE and isinstance(value, (tuple, list)):
            yield own, ()  # the field is still there
