"""ProxyFL on CINIC-10, with the settings of the authors' code (arXiv 2602.21078).

    python -m fedjax_ssl.main --config configs/cinic10_proxyfl.py  # Dirichlet concentration 0.1
    python -m fedjax_ssl.main --config configs/cinic10_proxyfl.py:iid
    # inputs standardized as in the code
    python -m fedjax_ssl.main --config configs/cinic10_proxyfl.py:0.1,code
    # as the paper's text has it, where it differs

20 clients with 450 labelled of 4,500 images each, 8 per round, ResNet-8 of four times the width,
400 rounds: a run for a GPU, not reproduced. Numbers of the paper: experiments/papers/tables/proxyfl.toml.
Differences of settings: docs/methods/others.md.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.sage_on_cifar, "cinic10", "proxyfl")
