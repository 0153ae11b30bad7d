"""(FL)^2 on CIFAR-100: arXiv 2410.23227, main table.

    # 400 labels at the server, iid clients
    python -m fedjax_ssl.main --config configs/cifar100_fl2.py
    # 100 labels, Dirichlet split
    python -m fedjax_ssl.main --config configs/cifar100_fl2.py:100,0.1

100 clients without labels, 10 per round, WRN-28-8, 800 rounds: a run for a GPU, not reproduced yet.
Clients keep their momentum, 9.4 GB in all; --config.optimizer.keep_state=False starts it anew. The
paper reports, as test accuracy in % with the deviation over 3 seeds; SemiFL is the authors' own
run, with batches of 10:

| labels  | SemiFL     | (FL)^2    | split |
| 100     | 9.8(2.4)   | 10.4(1.3) | 0.1   |
| 400     | 13.5(5.0)  | 23.5(1.2) | 0.1   |
| 100     | 12.4(1.2)  | 12.1(1.1) | 0.3   |
| 400     | 18.9(9.7)  | 25.4(1.0) | 0.3   |
| 100     | 13.9(3.3)  | 14.4(2.3) | iid   |
| 400     | 27.9(6.1)  | 28.1(2.2) | iid   |

How long the server trains before round 0 is not known for CIFAR-100; 10 calls here, as for
CIFAR-10. Other differences of settings: docs/methods/others.md.
"""

from fedjax_ssl import presets

get_config = presets.variants(presets.fl2_on_cifar, "cifar100")
