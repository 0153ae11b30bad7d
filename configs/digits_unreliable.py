"""Any method on the digits, with writers that are there half of the time.

    fedjax-ssl run digits_unreliable:xclp
    fedjax-ssl run digits_unreliable:xclp --participation.lost=0.3 --participation.lost_when=codes
    fedjax-ssl sweep digits_unreliable --set method.name=fedavg,xclp,fixmatch \
        --set participation.probability=0.1,0.5,0.9 --seeds 5
    python -m fedjax_ssl.main --config configs/digits_unreliable.py:xclp

Federation, labels and rounds are those of `digits.py`. In a round each writer is there with
probability 1/2, drawn by seed, round and writer, so that all methods of a seed lose the same
ones; `--participation` has more (docs/unreliable.md, with a table of six methods).
"""

from fedjax_ssl import presets


def get_config(argument="fedavg", method=None, rounds=None, place=None):
    config = presets.source("digits", argument, method, rounds, place)
    config.participation.probability = 0.5
    return config
