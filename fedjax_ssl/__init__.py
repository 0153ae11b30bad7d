# mypy: implicit-reexport
"""Federated learning with few, coarse or no labels, on one functional training step.

    import fedjax_ssl as fs

    config = fs.load_config("digits_xclp", {"rounds": 10, "method.warmup_rounds": 5})
    summary = fs.run(config, "runs/first")

Names are imported when they are first used: `import fedjax_ssl` brings neither jax nor flax.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedjax_ssl import graph, methods, models, objectives, report
    from fedjax_ssl.config import register
    from fedjax_ssl.config.load import load as load_config
    from fedjax_ssl.data import Dataset, FederatedData, federate
    from fedjax_ssl.data import load as load_dataset
    from fedjax_ssl.federated import Method, Sampler, Setup, Stage, Term, View, federated_method
    from fedjax_ssl.graph import propagate_labels
    from fedjax_ssl.runs import run
    from fedjax_ssl.train import make_train, over_seeds
    from fedjax_ssl.trained import load_run

__version__ = "0.1.0"

_PLACES = {
    # train and compare
    **{"load_config": "config:load", "run": "runs:run", "load_run": "trained:load_run", "report": "report"},
    **{"make_train": "train:make_train", "over_seeds": "train:over_seeds"},
    # data
    **{"load_dataset": "data:load", "federate": "data:federate"},
    **{"Dataset": "data:Dataset", "FederatedData": "data:FederatedData"},
    # labels without a training loop, and losses
    **{"propagate_labels": "graph:propagate_labels", "graph": "graph", "objectives": "objectives"},
    # methods and networks of your own
    **{name: f"federated:{name}" for name in ("Method", "Setup", "Term", "View", "Stage", "Sampler")},
    **{"federated_method": "federated:federated_method", "register": "config:register"},
    **{"methods": "methods", "models": "models"},
}
__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used."""
    if name not in _PLACES:
        if name in _rooms():
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers: {', '.join(_PLACES)}")
    module, _, attribute = _PLACES[name].partition(":")
    found = importlib.import_module(f"{__name__}.{module}")
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted({*__all__, *_rooms()})


def _rooms() -> list[str]:
    """The packages inside, as documentation names them: `fedjax_ssl.data`, `fedjax_ssl.federated` ..."""
    return [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
