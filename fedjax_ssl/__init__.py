"""fedjax_ssl: federated learning with few, coarse or no labels, on one functional training step."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedjax_ssl.trained import load_run

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`load_run` is imported when it is asked for, so that `import fedjax_ssl` brings neither jax nor flax."""
    if name == "load_run":
        from fedjax_ssl.trained import load_run

        return load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
