"""Any method on drawn characters of 62 classes, a stand-in shaped like FEMNIST that needs no
download: 100 writers.

    fedjax-ssl run glyphs                       # FedAvg
    fedjax-ssl run glyphs:semifl  # another method, with the labels where it needs them
    # ... or elsewhere: clients, per_class, coarse, sets, mixed, all
    fedjax-ssl run glyphs:fixmatch,server
    fedjax-ssl sweep glyphs --seeds 5 --set method.name=fedavg,xclp,fixmatch,uda,mean_teacher
    python -m fedjax_ssl.main --config configs/glyphs.py:xclp

20 labels at every writer, or 620 at the server. 60 rounds of 10 writers, a small convolutional
network. Accuracies are not FEMNIST's. Results of a comparison: docs/results.md.
"""

import functools

from fedjax_ssl import presets

get_config = functools.partial(presets.source, "glyphs")
