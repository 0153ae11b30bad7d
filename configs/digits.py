"""Any method on the digits: 11 writers train with few labels, 3 writers that were never seen are
the test.

    fedjax-ssl run digits                       # FedAvg
    fedjax-ssl run digits:semifl  # another method, with the labels where it needs them
    # ... or elsewhere: clients, per_class, coarse, sets, mixed, all
    fedjax-ssl run digits:fixmatch,server
    fedjax-ssl sweep digits --seeds 5 --set method.name=fedavg,xclp,fixmatch,uda,mean_teacher
    python -m fedjax_ssl.main --config configs/digits.py:xclp

5 labels at every writer; 50 at the server, 10 sets of a writer, "shape" as coarse labels, where the
method learns from those. 80 rounds, all but one writer in each, views as in the method's own config
`digits_METHOD`. That one has settings that suit the method; here all have the same federation.
Results of a comparison: docs/results.md.
"""

import functools

from fedjax_ssl import presets

get_config = functools.partial(presets.source, "digits")
