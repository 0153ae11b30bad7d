"""Contributed methods, models of the clients' own, privacy, sums of uploads, faults, late uploads
and LoRA, with their papers on top.

Each has a file. The core never imports them.

Rules, which tests/contrib/test_rules.py keeps:

- A file imports only rooms of the core, such as `fedjax_ssl.methods.parts`, and shared contributed
  files, whose names begin with an underscore.
- Without this folder, or without any of its files, the core works as before.
- A contributed method adds no field or hook to the core. What does not fit writes a round of its
  own with the core's functions.
- Its tests are the contract suite and one for its formula.
- Nothing is promised of its speed, or of equal results in the next version.

A method moves to the core when a paper of the core needs it.
"""

# Kind of choice -> file in this folder -> names of the choices, functions of these names there.
# The registries of the core read this table, and load a file when one of its names is asked for.
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "fault": {
        "robust/faults": ("flip_labels", "flip_signs", "scale"),
    },
    "method": {
        "methods/cbafed": ("cbafed",),
        "methods/fl2": ("fl2",),
        "methods/proxyfl": ("proxyfl",),
        "methods/sage": ("sage",),
    },
    "network": {"lora": ("lora",)},  # no registry's: code of a user's own calls it
    "privacy": {
        "privacy/gaussian": ("gaussian",),
        "privacy/dp_sgd": ("dp_sgd",),
    },
    "predictor": {"features/statistics": ("class_means", "linear_head")},
    "sum": {
        "robust/robust_sums": ("median", "trimmed_mean", "geometric_median", "norm_bound"),
    },
    "federated optimizer": {
        "optimizers/feddyn": ("feddyn",),
        "optimizers/fednova": ("fednova",),
    },
    "term": {
        "methods/moon": ("moon",),
    },
    "wrapper": {
        "asynchronous": ("asynchronous",),
        "personal/fedbn": ("fedbn",),
        "personal/ditto": ("ditto", "apfl"),
    },
}
