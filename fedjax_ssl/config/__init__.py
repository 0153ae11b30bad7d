"""Settings of a run: fields with defaults and checks, reading a config, resolving and describing
it.
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from fedjax_ssl.config.configured_optimizers import (
    federated_optimizer,
    local_training,
    replace_numbers,
    traced_numbers,
)
from fedjax_ssl.config.describe import Described, as_text, describe
from fedjax_ssl.config.fields import (
    CHOICES,
    FIELDS,
    REGISTRIES,
    check_field,
    default,
    fields_that,
    options_of,
    register,
)
from fedjax_ssl.config.load import Source, find, load, load_several, with_settings
from fedjax_ssl.config.resolve import network_options, options, resolve
from fedjax_ssl.config.rules import (
    divides_by_shares,
    own_metrics,
    predictors,
    saved_round,
    validates,
)
from fedjax_ssl.errors import ConfigError, ConfigNote, naming
