"""Experiments that several config files start from; each is a function that returns a config."""

# For users who run mypy --strict.
# mypy: implicit-reexport

from fedjax_ssl.presets.cifar_configs import (
    ProtoSplit,
    cbafed_on_cifar,
    fedmatch,
    fl2_on_cifar,
    protofssl_split,
    sage_on_cifar,
    semifl_clients,
)
from fedjax_ssl.presets.digits_configs import (
    Space,
    digits_by_writer,
    digits_consistency,
    digits_with_coarse_labels,
    digits_with_server,
    recommend,
)
from fedjax_ssl.presets.federations import (
    FEDUL_METHODS,
    MIXED_VARIANTS,
    FedulMethod,
    Mixed,
    OneShot,
    mixed_federation,
    one_shot,
    unlabelled_sets,
)
from fedjax_ssl.presets.sources import federation, of_method, personal_glyphs, source
from fedjax_ssl.presets.variants import Count, Iid, Several, Share, Split, variants
