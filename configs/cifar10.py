"""Any method on CIFAR-10: 100 clients with 10 labels each.

    fedjax-ssl run cifar10                       # FedAvg
    fedjax-ssl run cifar10:semifl  # another method, with the labels where it needs them
    # ... or elsewhere: clients, per_class, coarse, sets, mixed, all
    fedjax-ssl run cifar10:fixmatch,server
    fedjax-ssl sweep cifar10 --seeds 5 --set method.name=fedavg,xclp,fixmatch,uda,mean_teacher
    python -m fedjax_ssl.main --config configs/cifar10.py:xclp

10 labels at every client, or 1,000 at the server. 200 rounds of 10 clients, a small convolutional
network. Settings of papers: `cifar10_METHOD`. No result is stated; a run for a GPU.
"""

import functools

from fedjax_ssl import presets

get_config = functools.partial(presets.source, "cifar10")
