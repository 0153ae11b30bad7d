"""One-shot prediction of handwritten characters, 62 classes, every writer a client (XCLP, appendix,
FEMNIST).

    python -m fedjax_ssl.main --config configs/femnist_predict.py  # FEMNIST, raw pixels
    # features of a linear network
    python -m fedjax_ssl.main --config configs/femnist_predict.py:network
    # no download: drawn characters
    python -m fedjax_ssl.main --config configs/femnist_predict.py:inputs,glyphs

The paper cuts the writers at random into 50 groups with a graph each (here so too; one graph of
everybody: --config.prediction.groups=1) and has two kinds of features: the 784 pixels, and the
first layer of a two-layer linear network of FedAvg (width 128 and all training settings are ours,
the paper's are not known). A fifth of each writer's images is new, of the rest the fraction
`--config.supervision.fraction` is labelled. fedjax's training file has 671,585 images by 3,400
writers, the paper used 817,851 by 3,597. `left_out` is the third variant.

The paper's numbers are in its Table 6. Results of `glyphs`, which are not FEMNIST's, time,
hardware: docs/results.md.
"""

from typing import Literal

from fedjax_ssl import presets


@presets.variants
def get_config(variant: presets.OneShot = "inputs", data: Literal["femnist", "glyphs"] = "femnist"):
    config = presets.one_shot(variant, rounds=60 if data == "glyphs" else 500)
    config.data.name = data
    config.model.name = "mlp"
    config.model.hidden = (128,)
    config.model.activation = "none"
    config.optimizer.learning_rate = 0.1
    config.optimizer.batch_size = 20
    config.federated.cohort_size = 20 if config.rounds else None
    config.eval_every = 20
    if config.data.name == "femnist" and variant != "left_out":
        config.prediction.groups = 50
    return config
