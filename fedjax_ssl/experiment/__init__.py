"""From a config to what a run needs: dataset, federation, method."""

from fedjax_ssl.experiment.build import (
    Experiment,
    build_method,
    device_mesh,
    federate,
    load_experiment,
    prediction_settings,
)
