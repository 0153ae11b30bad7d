"""FixMatch on CINIC-10, in SAGE's federation.

    python -m fedjax_ssl.main --config configs/cinic10_fixmatch.py  # Dirichlet concentration 0.1
    python -m fedjax_ssl.main --config configs/cinic10_fixmatch.py:iid
    # labels of the received model
    python -m fedjax_ssl.main --config configs/cinic10_fixmatch.py --method.labels_from=global
    # inputs standardized as in SAGE's code
    python -m fedjax_ssl.main --config configs/cinic10_fixmatch.py:0.1,code

20 clients with 450 labelled of 4,500 images each, 8 per round, ResNet-8 of four times the width,
400 rounds of 175 local steps, as of SAGE: a run for a GPU, not reproduced. Differences of
settings: docs/methods/others.md.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.sage_on_cifar, "cinic10", "fixmatch")
