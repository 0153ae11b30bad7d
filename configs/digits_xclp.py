"""FedAvg+XCLP on real handwriting.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_xclp.py
    python -m fedjax_ssl.main --config configs/digits_xclp.py:10        # 10 labels per writer

Stage 1 trains on the labels alone for 40 rounds; stage 2 adds labels propagated over one graph of
all writers' digits. Settings of the authors' code (docs/methods/xclp.md) but 5 neighbours instead
of 10: there are 1,400 points, not 2,250.

Result over 5 seeds, time and hardware: docs/results.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_by_writer, "xclp")
