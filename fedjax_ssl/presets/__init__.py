"""Experiments that several config files start from; each is a function that returns a config."""

from fedjax_ssl.presets.cifar import cbafed_on_cifar, fl2_on_cifar, sage_on_cifar
from fedjax_ssl.presets.digits import digits_by_writer, digits_with_coarse_labels, digits_with_server
from fedjax_ssl.presets.digits_consistency import digits_consistency
from fedjax_ssl.presets.mixed_federation import MIXED_VARIANTS, mixed_federation
from fedjax_ssl.presets.one_shot import one_shot
from fedjax_ssl.presets.protofssl_split import protofssl_split
from fedjax_ssl.presets.sources import federation, of_method, source
from fedjax_ssl.presets.unlabelled_sets import FEDUL_METHODS, unlabelled_sets
