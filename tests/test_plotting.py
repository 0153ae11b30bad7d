"""Pictures need no display, and no backend that matplotlib knows."""

import os
import subprocess
import sys


def test_a_backend_that_matplotlib_does_not_know_stops_nothing():
    code = (
        "import os, fedjax_ssl.plotting as plotting; plotting.use_matplotlib();"
        "from matplotlib.backends.backend_agg import FigureCanvasAgg;"
        "print(os.environ['MPLBACKEND'])"
    )
    environment = {**os.environ, "MPLBACKEND": "Qt4Agg"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Qt4Agg\n"
