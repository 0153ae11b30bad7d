"""One-shot prediction on real handwriting: new digits of 14 writers, who labelled a tenth of their
other digits.

    # graphs of raw pixels, nothing is trained
    python -m fedjax_ssl.main --config configs/digits_predict.py
    # graphs of features of a FedAvg network
    python -m fedjax_ssl.main --config configs/digits_predict.py:network
    python -m fedjax_ssl.main --config configs/digits_predict.py --config.supervision.fraction=0.5

A fifth of every writer's digits is new. XCLP propagates the labels of all writers over one graph,
per-client LP those of each writer over a graph of its own; "_labelled" means without the unlabelled
training digits. One writer without training data, the others with all labels:

    python -m fedjax_ssl.main --config configs/digits_predict.py:left_out --config.data.left_out_client=3

The application of XCLP's section 4 to data that the paper does not have. Results, time and
hardware: docs/results.md.
"""

from fedjax_ssl import presets


@presets.variants
def get_config(variant: presets.OneShot = "inputs"):
    config = presets.one_shot(variant, rounds=80)
    config.optimizer.learning_rate = 0.3
    config.optimizer.local_epochs = 5
    config.prediction.num_neighbors = 5
    return config
