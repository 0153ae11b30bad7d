"""MixMatch: guessed labels of unlabelled examples, mixed with labelled ones.

The digits: 11 writers train with 5 labels each, 3 writers that were never seen are the test.

    python -m fedjax_ssl.main --config configs/digits_mixmatch.py
    python -m fedjax_ssl.main --config configs/digits_mixmatch.py:10  # 10 labels per writer
    # 20 labels, all at the server
    python -m fedjax_ssl.main --config configs/digits_mixmatch.py:server,20

Two views of each unlabelled example, moved by up to a pixel, make its guess. One epoch a round and
a smaller weight than the paper's 75: five epochs, or that weight, did worse. See
docs/methods/baselines.md. Not an experiment of the paper.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.digits_consistency, "mixmatch")
