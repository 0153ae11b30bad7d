# mypy: implicit-reexport
"""Settings of a run: fields with defaults and checks, reading a config, resolving and describing
it.
"""

from fedjax_ssl.config.describe import Described, as_text, describe
from fedjax_ssl.config.fields import CHOICES, FIELDS, REGISTRIES, check_field, default, register
from fedjax_ssl.config.load import Source, find, load, load_several, with_settings
from fedjax_ssl.config.resolve import (
    federated_optimizer,
    local_training,
    options,
    own_metrics,
    predictors,
    replace_numbers,
    resolve,
    saved_round,
    traced_numbers,
    validates,
)
from fedjax_ssl.errors import ConfigError, ConfigNote, naming
