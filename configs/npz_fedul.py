"""FedUL on your own sets: an .npz file with the arrays `client` and `set`, and a CSV file with
their class shares.

    python -m fedjax_ssl.main --config configs/npz_fedul.py --config.data.path=scans.npz \\
        --config.data.proportions=shares.csv

Both files: docs/your_data.md, "Your own federation". A client needs two sets with different class shares
at least. Training labels are -1 where nobody knows them; where somebody does, they are learned from
too, as are coarse labels.

A small network on small images or features; for photographs see configs/rsna_fedul.py. Any
hardware.
"""

from fedjax_ssl import config as configs


def get_config():
    config = configs.default("fedul")
    config.rounds = 50
    config.data.name = "npz"
    config.supervision.name = "given"
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.batch_size = 64
    return config
