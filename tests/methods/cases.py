"""What the suites over all methods have to know of a method beside what it says of itself (`needs`,
its settings).

A method that keeps every promise with its default settings needs no line here, but for a config
`digits_NAME.py`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_ssl import config as configs
from fedjax_ssl import methods
from fedjax_ssl.federated import Method, Setup
from fedjax_ssl.testing.promises import ROUNDS, Special
from tests import toy


class Case(NamedTuple):
    """One method in the contract suite: the toy run that it is shown with, and the promises that
    are not its own.
    """

    config: str = ""  # under configs/, with its argument; "": digits_NAME.py
    settings: dict[str, Any] = {}  # its own, on the toy federation  # noqa: RUF012
    model: dict[str, Any] = {}  # options of its network  # noqa: RUF012
    mechanism: str = ""
    # ^ what of the engine it is the example of, for tests whose result depends on the engine alone
    clients_train: int | None = None
    # ^ rounds in which clients train, the server alone in all others; None: every round
    first_targets: int = 0  # rounds without pseudo-labels at the start, beside `warmup_rounds`
    never_sent: tuple[str, ...] = ()  # parameter groups that stay where they are
    learns_without_labels: str = ""
    # ^ why the model moves although nobody knows anything of a class; "": it does not


CASES = {
    "fedavg": Case(mechanism="labels only, nothing sent beside the model"),
    "xclp": Case(
        settings={"num_bits": 256, "num_neighbors": 3},
        mechanism="targets sent to the clients, from data of all of them",
    ),
    "per_client_lp": Case(settings={"num_neighbors": 3}),
    "network_pseudo_label": Case(learns_without_labels="the network labels whatever it is given"),
    "fedsem": Case(learns_without_labels="the network labels whatever it is given"),
    "fedsiam": Case(
        settings={"consistency_weight": 10.0},  # the default is too strong for this learning rate
        model={"aux_head": True},
        mechanism="state of the local step",
    ),
    "fedpl": Case(config="digits_fedul.py:10,iid,fedpl"),
    "fedllp": Case(config="digits_fedul.py:10,iid,fedllp", mechanism="weak labels"),
    "fedllp_vat": Case(config="digits_fedul.py:10,iid,fedllp_vat"),
    "single": Case(clients_train=0),
    "semifl": Case(
        settings={"threshold": 0.5},  # some examples are confident from the first round on
        learns_without_labels="the network labels whatever it is sure of",
    ),
    "fedmt": Case(
        config="digits_fedmt.py:20,shape,estimated",
        settings={"threshold": 0.5, "warm_start": False},
        mechanism="a server that trains, after the clients",
        learns_without_labels="the network labels whatever it is sure of",
    ),
    "fedtrans": Case(
        config="digits_fedmt.py:20,shape,fedtrans",
        settings={"coarse_rounds": 1},
        model={"aux_head": True},
        clients_train=1,
    ),
    "protofssl": Case(
        # The toy's clients lack classes: with the default the part of the loss towards these cannot
        # fall.
        settings={"absent_classes": "flow"},
        mechanism="what clients send back beside their model",
        first_targets=1,
    ),
    "fedmatch": Case(
        settings={
            # for this learning rate and its rounds
            **{"supervised_weight": 3.0, "l2_weight": 1.0, "threshold": 0.4},
            **{
                "helper_interval": 2,
                "lr_schedule": "none",
                "labels_at": "clients",
            },
        },
        never_sent=("sigma", "psi"),  # as a whole: messages are sparse
        learns_without_labels="psi follows sigma, and the network labels whatever it is sure of",
    ),
    "fedrep": Case(
        model={"aux_head": True}, settings={"head_epochs": 2}, never_sent=("head", "aux_head")
    ),
    "fedrgd": Case(
        settings={"local_steps": 20, "lr_schedule": "run"},
        first_targets=4,  # users are sure of nothing for longer than that
        learns_without_labels="the network labels whatever it is sure of",
    ),
    "fl2": Case(
        settings={"pretrain_calls": 0},
        learns_without_labels="the network labels whatever it is sure of",
    ),
    "cbafed": Case(
        # some examples are kept from the first round on
        settings={"warmup_epochs": 2, "base_threshold": 0.2},
        learns_without_labels="the network labels whatever it is sure of",
    ),
    "sage": Case(
        settings={"threshold": 0.5},
        learns_without_labels="the network labels whatever it is sure of",
    ),
    "proxyfl": Case(
        settings={"threshold": 0.5, "tuning_epochs": 2},
        learns_without_labels="the network labels whatever it is sure of",
    ),
    "mixed": Case(settings={"num_bits": 256, "num_neighbors": 3}),
    "compose": Case(
        settings={
            "parts": ("supervised", "prototypes", "fixmatch"),
            "fixmatch.threshold": 0.5,
            "unlabelled_ratio": 2,
        },
        first_targets=1,
        learns_without_labels="the network labels whatever it is sure of",
    ),
    # Small weights, batches and ramps: the defaults are for many rounds on images.
    "fixmatch": Case(
        settings={"threshold": 0.5, "unlabelled_ratio": 2, "ema_decay": 0.5},
        learns_without_labels="the network labels whatever it is sure of",
    ),
    "uda": Case(
        settings={"threshold": 0.5, "tsa_rounds": 2, "unlabelled_ratio": 2},
        learns_without_labels="the network labels whatever it is sure of",
    ),
    "mixmatch": Case(
        settings={"unlabelled_weight": 5.0, "ramp_rounds": 2},
        learns_without_labels="the network labels whatever it is given",
    ),
    "mean_teacher": Case(
        settings={"unlabelled_weight": 5.0, "decay": 0.9},
        learns_without_labels="two views are to agree",
    ),
    "vat": Case(settings={"radius": 0.5}, learns_without_labels="neighbours are to agree"),
    "pi_model": Case(
        settings={"unlabelled_weight": 5.0, "ramp_rounds": 2},
        learns_without_labels="two views are to agree",
    ),
    "pseudo_label": Case(
        settings={"ramp_start": 0, "ramp_end": 2, "unlabelled_weight": 1.0, "unlabelled_ratio": 2},
        learns_without_labels="the network labels whatever it is given",
    ),
}
MECHANISMS = sorted(name for name, case in CASES.items() if case.mechanism)


def of(name: str) -> Case:
    """The case of a registered method, complete: with one round of its first stage, and its
    config.
    """
    case = CASES.get(name, Case())
    first_stage = {"warmup_rounds": 1} if "warmup_rounds" in methods.settings(name) else {}
    return case._replace(
        settings={**first_stage, **case.settings}, config=case.config or f"digits_{name}.py"
    )


def special(name: str) -> Special:
    """What a method does otherwise than most, as the contract suite has to know it."""
    case = of(name)
    return Special(
        labels_first="warmup_rounds" in case.settings,
        clients_train=ROUNDS if case.clients_train is None else case.clients_train,
        first_targets=case.first_targets,
        never_sent=case.never_sent,
        learns_without_labels=bool(case.learns_without_labels),
    )


def setup(name: str, data: Any, **changes: Any) -> Setup:
    """The toy run of a method; `changes` are fields of `Setup`."""
    return toy.setup(data, model_options=of(name).model, augment=toy.jitter, **changes)


def build(
    name: str, data: Any, numbers: Mapping[str, Any] = MappingProxyType({}), **changes: Any
) -> Method:
    """The method with the settings of its case, some of which may give way to numbers."""
    return methods.build(name, setup(name, data, **changes), **{**of(name).settings, **numbers})


def traceable_numbers(name: str) -> dict[str, float]:
    """The settings of a method's case that are arguments of a run's program, see
    `config.traced_numbers`.
    """
    settings = {f"method.{setting}": value for setting, value in of(name).settings.items()}
    config = configs.with_settings(configs.default(name), settings)
    numbers = configs.traced_numbers(config)
    return {
        field.removeprefix("method."): value
        for field, value in numbers.items()
        if field.startswith("method.")
    }
