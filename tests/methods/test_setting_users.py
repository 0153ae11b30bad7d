"""Every setting of a method has a user: a config, preset, table of a paper, experiment or notebook
that sets it. What nobody sets goes, but for the exceptions below.
"""

import re
from pathlib import Path

from fedjax_ssl.methods import METHODS

ROOT = Path(__file__).parents[2]
EXCEPTIONS = {
    "a weight of the paper's loss, which a study may sweep": {
        *("fedmatch.supervised_weight", "fedmatch.l1_weight", "fedmt.projection_weight"),
        *("fedsiam.head_weight", "mixed.channel_weight", "mixed.pseudo_label_weight"),
        "mixed.prototype_weight",
        *("fl2.pseudo_label_weight", "fl2.eta"),
    },
    "a number of the paper or its code, which other data may need": {
        *("fedmatch.clip_eps", "fedmatch.l1_threshold", "fedmatch.delta_threshold"),
        *("fedmatch.psi_factor", "protofssl.num_support", "protofssl.num_query"),
        *("semifl.mixup_alpha", "fedmt.mixup_alpha", "mixmatch.mixup_alpha", "fedpl.mix_alpha"),
        *("mixmatch.num_augmentations", "fedrep.body_epochs", "fedsiam.decay"),
        *("mean_teacher.decay", "fedsiam.ramp_rounds", "mixmatch.ramp_rounds"),
        *("mean_teacher.ramp_rounds", "pi_model.ramp_rounds", "pseudo_label.ramp_start"),
        *("pseudo_label.ramp_end", "uda.tsa_rounds", "mixed.anchor_confidence"),
        *("sage.kappa", "sage.labelled_copies", "proxyfl.labelled_copies"),
        *("cbafed.base_threshold", "cbafed.largest_threshold", "fl2.pretrain_calls"),
    },
    "the paper's ablation": {
        *("fl2.adaptive_thresholds", "fl2.perturb", "fl2.uncertainty_weights"),
        *("cbafed.tail_second", "cbafed.local_residual", "cbafed.global_residual", "uda.tsa"),
        *("proxyfl.prior_decay", "proxyfl.tuning_batch_size"),
        *("proxyfl.tuning_cap", "proxyfl.tuning_rate"),
    },
    "as the released code, which a fixture compares": {
        *("fedllp_vat.rampup", "fedpl.skip_empty", "fedul.surrogate_loss"),
        *("fedul.use_test_prior", "semifl.separate_passes", "fedmt.separate_passes"),
        *("protofssl.absent_classes",),
    },
    "a limit in which two methods are equal": {
        *("per_client_lp.unlabelled_clients", "fedsiam.unlabelled_clients"),
        *("pi_model.stop_gradient", "fedsiam.predict_with"),
    },
    "says where labels are, when both sides have some": {"fedmatch.labels_at"},
    "of XCLP's graph: what docs/secure.md measures, and how the system is solved": {
        *("xclp.fixed_projections", "xclp.protocol"),
        *(f"{method}.graph_features" for method in ("xclp", "per_client_lp", "mixed")),
        *(f"{method}.solver" for method in ("xclp", "per_client_lp", "mixed")),
    },
}


def texts() -> str:
    """All that sets settings: configs, presets, experiments, notebooks, and what methods recommend
    themselves.
    """
    places = (
        *(ROOT / "configs").glob("*.py"),
        *(ROOT / "fedjax_ssl" / "presets").glob("*.py"),
        *(ROOT / "experiments").rglob("*.py"),
        *(ROOT / "experiments" / "leaderboard").glob("*.json"),
        *(ROOT / "notebooks").glob("*.ipynb"),
    )
    folders = ROOT / "fedjax_ssl" / "methods", ROOT / "fedjax_ssl" / "contrib"
    own = "\n".join(path.read_text("utf-8") for folder in folders for path in folder.rglob("*.py"))
    recommended = re.findall(r'"method\.\w+"', own)
    return "\n".join([*(path.read_text("utf-8") for path in places), *recommended])


def test_every_setting_of_a_method_has_a_user() -> None:
    settings = {
        f"{method}.{setting}"
        for method in METHODS
        for setting in METHODS.options(method)
        if "." not in setting
    }
    names = {one.partition(".")[2] for one in settings}
    text = texts()
    used = {
        name
        for name in names
        if re.search(rf"""method\.(\w+\.)?{name}\b|["']{name}["']|\b{name}=""", text)
    }
    unused = {one for one in settings if one.partition(".")[2] not in used}
    allowed = set().union(*EXCEPTIONS.values())
    assert not unused - allowed, "set them somewhere, or let them go"
    assert not allowed - unused, "these have users now, or are gone: no exceptions"
