"""Any method on MNIST: 100 clients with 10 labels each.

    fedjax-ssl run mnist                       # FedAvg
    fedjax-ssl run mnist:semifl                # another method, with the labels where it needs them
    # ... or elsewhere: clients, per_class, coarse, sets, mixed, all
    fedjax-ssl run mnist:fixmatch,server
    fedjax-ssl sweep mnist --seeds 5 --set method.name=fedavg,xclp,fixmatch,uda,mean_teacher
    python -m fedjax_ssl.main --config configs/mnist.py:xclp

10 labels at every client, or 1,000 at the server; "shape" as coarse labels. 100 rounds of 10
clients, two hidden layers of 200. An .npz file with Keras' arrays in place of the download:
--data.name=npz --data.path=mnist.npz. Results of a comparison: docs/results.md.
"""

import functools

from fedjax_ssl import presets

get_config = functools.partial(presets.source, "mnist")
