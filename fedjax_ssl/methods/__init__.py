"""Published methods, one recipe per file, by the name used in `config.method.name`.

A recipe of your own is named "module:function", for example `--config.method.name=my_methods:entropy`.
"""

from typing import Any

from fedjax_ssl.federated import Method
from fedjax_ssl.methods.cbafed import cbafed
from fedjax_ssl.methods.fedavg import fedavg
from fedjax_ssl.methods.fedllp import fedllp, fedllp_vat
from fedjax_ssl.methods.fedmatch import fedmatch
from fedjax_ssl.methods.fedmt import fedmt
from fedjax_ssl.methods.fedpl import fedpl
from fedjax_ssl.methods.fedrep import fedrep
from fedjax_ssl.methods.fedrgd import fedrgd
from fedjax_ssl.methods.fedsem import fedsem
from fedjax_ssl.methods.fedsiam import fedsiam
from fedjax_ssl.methods.fedtrans import fedtrans
from fedjax_ssl.methods.fedul import fedul
from fedjax_ssl.methods.fixmatch import fixmatch
from fedjax_ssl.methods.fl2 import fl2
from fedjax_ssl.methods.mean_teacher import mean_teacher
from fedjax_ssl.methods.mixed import mixed
from fedjax_ssl.methods.mixmatch import mixmatch
from fedjax_ssl.methods.network_pseudo_label import network_pseudo_label
from fedjax_ssl.methods.parts.channel_terms import check_channels
from fedjax_ssl.methods.per_client_lp import per_client_lp
from fedjax_ssl.methods.pi_model import pi_model
from fedjax_ssl.methods.protofssl import protofssl
from fedjax_ssl.methods.pseudo_label import pseudo_label
from fedjax_ssl.methods.sage import sage
from fedjax_ssl.methods.semifl import semifl
from fedjax_ssl.methods.single import single
from fedjax_ssl.methods.uda import uda
from fedjax_ssl.methods.vat import vat
from fedjax_ssl.methods.xclp import xclp
from fedjax_ssl.registry import Registry

_RECIPES = (
    fedavg,
    xclp,
    per_client_lp,
    network_pseudo_label,
    fedsem,
    fedsiam,
    fedul,
    fedpl,
    fedllp,
    fedllp_vat,
    single,
    semifl,
    fedmt,
    fedtrans,
    protofssl,
    fedmatch,
    mixed,
    fl2,
    cbafed,
    sage,
    fixmatch,
    uda,
    mixmatch,
    mean_teacher,
    vat,
    pi_model,
    pseudo_label,
    fedrgd,
    fedrep,
)
METHODS: Registry[Method] = Registry("method", {recipe.__name__: recipe for recipe in _RECIPES}, leading=1)
available = METHODS.available  # () -> names of all methods with a line about each
build = METHODS.build  # (name, setup, **settings) -> Method


def settings(name: str) -> dict[str, Any]:
    """The method's own settings with their defaults, as `config.method` holds them beside `name`.

    Raises:
        ValueError: for an unknown method, naming the nearest one.
    """
    return {setting: option.default for setting, option in METHODS.options(name).items()}
