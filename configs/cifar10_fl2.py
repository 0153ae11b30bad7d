"""(FL)^2 on CIFAR-10: arXiv 2410.23227, main table.

    # 40 labels at the server, iid clients
    python -m fedjax_ssl.main --config configs/cifar10_fl2.py
    python -m fedjax_ssl.main --config configs/cifar10_fl2.py:10,0.1  # 10 labels, Dirichlet split

100 clients without labels, 10 per round, WRN-28-2, 800 rounds: a run for a GPU, not reproduced yet.
The paper reports, as test accuracy in % with the deviation over 3 seeds; SemiFL is the authors' own
run, with batches of 10:

| labels  | SemiFL    | (FL)^2     | split |
| 10      | 10.0(0.0) | 19.2(5.7)  | 0.1   |
| 40      | 19.9(7.5) | 36.4(1.4)  | 0.1   |
| 10      | 10.0(0.0) | 24.3(4.5)  | 0.3   |
| 40      | 38.0(2.7) | 43.5(7.5)  | 0.3   |
| 10      | 10.0(0.0) | 38.9(11.1) | iid   |
| 40      | 75.3(2.8) | 81.5(7.4)  | iid   |

Whether last or best round is not said. Differences of settings: docs/methods/others.md.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.fl2_on_cifar, "cifar10")
