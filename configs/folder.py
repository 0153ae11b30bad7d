"""Any method on your own images, in folders by site and class, or with a table.

    fedjax-ssl data check scans                                # what is there, and what is wrong
    fedjax-ssl run folder --data.path=scans                    # FedAvg
    fedjax-ssl run folder:xclp --data.path=scans --data.size=32
    fedjax-ssl run folder:fixmatch,server --data.path=scans/labels.csv --supervision.labels=50
    fedjax-ssl sweep folder --set data.path=scans --set method.name=fedavg,xclp,fixmatch,uda --seeds 5
    python -m fedjax_ssl.main --config configs/folder.py:xclp --config.data.path=scans

The folder: docs/your_data.md. Clients and labels are as in it; `folder:METHOD,per_client` hides labels
but for 10 of each client; likewise per_class, server, sets, mixed and all. Without sites:
--partition.name=iid --partition.num_clients=10. Without test images:
--data.client_test_fraction=0.2, or a whole site, --data.left_out_client=NAME. A small convolutional
network; weak views are shifted, --augment.name=crop_flip flips them too. 60 rounds of all clients.
"""

import functools

from fedjax_ssl import presets

get_config = functools.partial(presets.source, "folder")
