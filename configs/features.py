"""Any method on features of an encoder: a head on top of a network that is not trained.

    fedjax-ssl features cifar10 --encoder timm:tf_efficientnet_lite0 --output cifar10_lite0
    fedjax-ssl run features --data.path=cifar10_lite0               # FedAvg on what has labels
    fedjax-ssl run features:fixmatch,per_client --data.path=cifar10_lite0
    fedjax-ssl sweep features --set data.path=cifar10_lite0 --set method.name=fedavg,xclp,fixmatch --seeds 5
    python -m fedjax_ssl.main --config configs/features.py:xclp --config.data.path=cifar10_lite0

Features that were made elsewhere: --data.path=features.npz, with `inputs` [n, d] or [n, views, d]
(docs/pretrained.md#features-encoded-once). Clients and labels are as in the data that were encoded;
`features:METHOD,per_client` hides labels but for 10 of each client; likewise per_class, server,
coarse, sets, mixed and all. Without clients: --partition.name=iid --partition.num_clients=10. A
linear head; 60 rounds of all clients.
"""

import functools

from fedjax_ssl import presets

get_config = functools.partial(presets.source, "features")
