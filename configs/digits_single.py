"""The server alone on its few labelled digits: the lower baseline of SemiFL and FedMT.

The digits: 11 writers do nothing, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_single.py
    python -m fedjax_ssl.main --config configs/digits_single.py:50    # 50 labels at the server

Result over 5 seeds, time and hardware: docs/methods/fedmt.md. Not an experiment of a paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_with_server, "single")
