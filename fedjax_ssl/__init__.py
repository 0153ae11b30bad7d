"""Federated learning with few, coarse or no labels, on one functional training step.

    import fedjax_ssl as fs

    config = fs.load_config("digits_xclp", {"rounds": 10, "method.warmup_rounds": 5})
    summary = fs.run(config, "runs/first")

Names are imported when they are first used: `import fedjax_ssl` brings neither jax nor flax. If JAX
has not computed yet, each core of the processor becomes a device (`fedjax_ssl.processor.start`).
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from fedjax_ssl import processor
from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl import graph, methods, models, objectives, report
    from fedjax_ssl.config import register
    from fedjax_ssl.config.load import load as load_config
    from fedjax_ssl.data import Dataset, FederatedData, federate
    from fedjax_ssl.data import load as load_dataset
    from fedjax_ssl.federated import (
        Method,
        Recipe,
        Sampler,
        Setup,
        Stage,
        Term,
        Training,
        View,
        build,
    )
    from fedjax_ssl.graph import plan_labels, propagate_labels
    from fedjax_ssl.methods.compose import compose
    from fedjax_ssl.models import from_linen, from_nnx
    from fedjax_ssl.runs import run
    from fedjax_ssl.train import make_train, over_seeds, train
    from fedjax_ssl.trained import load_run

try:
    __version__ = version("fedjax_ssl")  # builds take it from CHANGELOG.md
except PackageNotFoundError:  # a checkout on the path, never installed
    __version__ = "0+unknown"

__all__ = [
    *(
        "__version__",
        "load_config",
        "run",
        "load_run",
        "report",
        "make_train",
        "over_seeds",
        "train",
    ),
    *("load_dataset", "federate", "Dataset", "FederatedData"),
    *(
        "propagate_labels",
        "plan_labels",
        "graph",
        "objectives",
    ),  # labels without a training loop, and losses
    *(
        "Method",
        "Recipe",
        "build",
        "compose",
        "Setup",
        "Term",
        "View",
        "Stage",
        "Training",
        "Sampler",
        "register",
        "methods",
        "models",
        "from_linen",
        "from_nnx",
    ),
]
__getattr__, __dir__ = attach(__name__)
processor.start()
