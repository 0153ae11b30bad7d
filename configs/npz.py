"""Any method on your own arrays, whose clients and labels are as in the file.

    fedjax-ssl run npz --data.path=scans.npz                # FedAvg
    fedjax-ssl run npz:xclp --data.path=scans.npz           # another method
    # 50 labels, moved to the server
    fedjax-ssl run npz:semifl --data.path=scans.npz --supervision.labels=50
    fedjax-ssl sweep npz --set data.path=scans.npz --set method.name=fedavg,xclp,fixmatch,uda --seeds 5
    python -m fedjax_ssl.main --config configs/npz.py:xclp --config.data.path=scans.npz

The file: docs/your_data.md. `npz:METHOD,per_client` hides labels but for 10 of each client; likewise
per_class, server, coarse (labels of another space are in the file), sets, mixed and all. A file
without clients: --partition.name=iid --partition.num_clients=10. Without test examples:
--data.client_test_fraction=0.2, or a whole site, --data.left_out_client=NAME. One hidden layer; for
images --model.name=cnn --augment.name=shift --strong_augment.name=fixmatch. 60 rounds of all
clients.
"""

import functools

from fedjax_ssl import presets

get_config = functools.partial(presets.source, "npz")
