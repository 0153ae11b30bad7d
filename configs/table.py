"""Any method on your own table of features, CSV or Parquet.

    fedjax-ssl data check patients.csv                         # what is there, and what is wrong
    fedjax-ssl run table --data.path=patients.csv              # FedAvg
    fedjax-ssl run table:xclp --data.path=patients.csv --data.ignore=id --data.missing=median
    fedjax-ssl sweep table --set data.path=patients.csv --set method.name=fedavg,xclp,pseudo_label --seeds 5
    python -m fedjax_ssl.main --config configs/table.py:xclp --config.data.path=patients.csv

The file: docs/your_data.md. Clients and labels are as in it; `table:METHOD,per_client` hides labels but
for 10 of each client; likewise per_class, server, sets, mixed and all. Without a column client:
--partition.name=iid --partition.num_clients=10. Without test rows: --data.client_test_fraction=0.2,
or a whole client, --data.left_out_client=NAME. One hidden layer. 60 rounds of all clients.
"""

import functools

from fedjax_ssl import presets

get_config = functools.partial(presets.source, "table")
