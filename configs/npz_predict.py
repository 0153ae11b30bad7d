"""One-shot prediction on your own arrays: labels for the new examples that your clients hold.

    python -m fedjax_ssl.main --config configs/npz_predict.py --config.data.path=features.npz
    python -m fedjax_ssl.main --config configs/npz_predict.py:inputs,hold_out --config.data.path=features.npz
    python -m fedjax_ssl.main --config configs/npz_predict.py:network,iid --config.data.path=mnist.npz

The file holds `inputs` (features of a network of yours, or images), `labels` (-1 = unlabelled),
`client`, and the new examples as `test_inputs`, `test_client` and `test_labels` (-1 where nobody
knows); see docs/your_data.md. A client may have new examples only, or no labels. `hold_out` instead
takes a fifth of every client's training examples as new ones and hides nine tenths of the other
labels; `iid` does the same after dealing the training examples to 100 clients. With `network` in
place of `inputs`, graphs are built on the features of a network that FedAvg trains on the labels.

`predictions.csv` in the run folder has a line per new example. XCLP, section 4 of the paper;
results: docs/results.md.
"""

from typing import Literal

from fedjax_ssl import presets


@presets.variants
def get_config(
    variant: presets.OneShot = "inputs", examples: Literal["given", "hold_out", "iid"] = "given"
):
    config = presets.one_shot(variant, rounds=60)
    config.data.name = "npz"
    config.data.path = "data.npz"
    config.eval_every = 20
    if examples == "given" and variant != "left_out":
        config.data.client_test_fraction = 0.0
        config.supervision.name = "all"
        config.supervision.fraction = None
    if examples == "iid":
        config.partition.name = "iid"
        config.partition.num_clients = 100
        config.federated.cohort_size = 20 if config.rounds else None
    return config
