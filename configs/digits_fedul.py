"""FedUL: no client has a single label, only sets of digits whose class shares are known.

Of the embedded digits, four fifths are dealt to 5 clients and the others are the test. Each client
cuts its digits into sets and knows how often each class is in them; nobody says which digit is
which.

    python -m fedjax_ssl.main --config configs/digits_fedul.py
    python -m fedjax_ssl.main --config configs/digits_fedul.py:20,noniid  # sets per client, split
    python -m fedjax_ssl.main --config configs/digits_fedul.py:20,noniid,fedpl       # a baseline

Splits: iid, or noniid, where every client mostly has two classes. Baselines: fedpl, fedllp,
fedllp_vat, and fedavg, which is given the labels of a tenth of the digits. All have the same
network, optimizer and number of rounds. Half of these are the first part of fedpl: after five, as
in the paper, its own predictions fall into one class here.

Result over 3 seeds, time and hardware: docs/methods/fedul.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets


@presets.variants
def get_config(
    sets: presets.Several = 10,
    split: presets.Iid = "iid",
    method: presets.FedulMethod = "fedul",
):
    config = presets.unlabelled_sets(sets, split, method)
    config.eval_every = 5
    config.data.test_fraction = 0.2
    config.model.hidden = (64,)
    return presets.recommend(config, "sets")
