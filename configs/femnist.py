"""Any method on FEMNIST: 3,400 writers with 20 labels each.

    fedjax-ssl run femnist                       # FedAvg
    fedjax-ssl run femnist:semifl  # another method, with the labels where it needs them
    # ... or elsewhere: clients, per_class, coarse, sets, mixed, all
    fedjax-ssl run femnist:fixmatch,server
    fedjax-ssl sweep femnist --seeds 5 --set method.name=fedavg,xclp,fixmatch,uda,mean_teacher
    python -m fedjax_ssl.main --config configs/femnist.py:xclp

20 labels at every writer, or 620 at the server. 1,000 rounds of 10 writers, a small convolutional
network. The files: docs/your_data.md; not run yet, a run for a GPU.
"""

import functools

from fedjax_ssl import presets

get_config = functools.partial(presets.source, "femnist")
