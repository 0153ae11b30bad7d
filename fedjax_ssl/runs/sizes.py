"""Settings that ask for more than a machine's memory, found in the shapes of a traced program before it is compiled."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params
from ml_collections import ConfigDict

from fedjax_ssl import processor
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError
from fedjax_ssl.federated import device_memory
from fedjax_ssl.federated.liveness import array_bytes
from fedjax_ssl.runs.files import bytes_in_words

# What lies in memory as a whole, whatever the compiler fuses: what goes into these operations and comes out of them.
_WHOLE = ("dot_general", "conv_general_dilated", "sort", "scan", "while", "top_k")
_LARGE = 1000  # settings below cannot alone be what is too much
_SECTIONS = ("method", "model", "optimizer", "federated", "augment", "strong_augment")  # that decide shapes of a round


def sizes_of(config: ConfigDict) -> dict[str, int]:
    """The large whole numbers of a config, by dotted name: what may be too much."""
    found: dict[str, int] = {}
    for section in _SECTIONS:
        for option, given in config[section].items():
            values = given if isinstance(given, tuple) else (given,)
            largest = max((value for value in values if isinstance(value, int)), default=0)
            if largest >= _LARGE and not option.endswith("rounds"):  # how long something lasts
                found[f"{section}.{option}"] = largest
    return found


@contextlib.contextmanager
def counting(sizes: Mapping[str, int]) -> Iterator[None]:
    """Turns what tracing raises where a size is beyond the indices of arrays into a `ConfigError`.

    Args:
        sizes: from `sizes_of`.
    """
    try:
        yield
    except OverflowError as error:
        if not sizes:
            raise
        name, value = max(sizes.items(), key=lambda item: item[1])
        raise ConfigError(
            f"config.{name} is {value}: a round would need arrays of more elements than can be counted; lower it"
        ) from error


def check_state(state: Any, sizes: Mapping[str, int]) -> None:
    """Raises ConfigError for a state that no memory holds.

    Args:
        state: arrays or their shapes.
        sizes: from `sizes_of`.
    """
    _check(jax.tree.leaves(state), sizes, "the state of a run")


def check_program(program: ClosedJaxpr, sizes: Mapping[str, int]) -> None:
    """Raises ConfigError for a program with an array that no memory holds.

    Args:
        program: traced.
        sizes: from `sizes_of`.
    """
    _check(list(_arrays(program.jaxpr)), sizes, "a round")


def _check(arrays: list[Any], sizes: Mapping[str, int], what: str) -> None:
    memory = processor.memory() if backend() == "cpu" else device_memory()
    largest = max(arrays, key=array_bytes, default=None)
    if memory is None or largest is None or array_bytes(largest) <= memory:
        return
    shape = f"{largest.dtype}[{', '.join(f'{size:,}' for size in largest.shape)}]"
    needs = f"{what} would need an array of {bytes_in_words(array_bytes(largest))}, {shape}, and the memory has"
    name = _cause(largest.shape, sizes)
    start = f"config.{name} is {sizes[name]}: " if name else ""
    lower = "lower it" if name else "lower the sizes of the model, of batches or of the cohort"
    raise ConfigError(f"{start}{needs} {bytes_in_words(memory)}; {lower}")


def _cause(shape: tuple[int, ...], sizes: Mapping[str, int]) -> str | None:
    """The field that made an array as large as it is: one whose number is a factor of a side, or goes into one."""
    factors = [name for name, value in sizes.items() if any(side and side % value == 0 for side in shape)]
    parts = [name for name, value in sizes.items() if value <= max(shape, default=0)]
    return max(factors or parts, key=lambda name: sizes[name], default=None)


def _arrays(jaxpr: Jaxpr) -> Iterator[Any]:
    """Shapes of what lies in memory as a whole while a traced function runs."""
    yield from (variable.aval for variable in jaxpr.outvars)
    for equation in jaxpr.eqns:
        if equation.primitive.name in _WHOLE:
            yield from (variable.aval for variable in (*equation.invars, *equation.outvars))
        for inner in jaxprs_in_params(equation.params):
            yield from _arrays(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)
