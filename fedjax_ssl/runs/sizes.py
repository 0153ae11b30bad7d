"""Settings that ask for more than a machine's memory."""

import contextlib
from collections.abc import Iterator, Mapping

from ml_collections import ConfigDict

from fedjax_ssl import processor
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError
from fedjax_ssl.federated import ServerState, device_memory, tree_bytes
from fedjax_ssl.runs.files import bytes_in_words

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


def check_state(state: ServerState, sizes: Mapping[str, int]) -> None:
    """Raises ConfigError for a state that no memory holds.

    Args:
        state: shapes are enough.
        sizes: from `sizes_of`.
    """
    needed, kept = tree_bytes(state), tree_bytes(state.clients)
    what, more = "the state of a run", ""
    if 2 * kept > needed:
        what += ", most of which clients keep between rounds,"
        more = ", use fewer clients, or do not keep the state of local optimizers (config.optimizer.keep_state=False)"
    check_bytes(needed, what, sizes, more)


def check_bytes(needed: int, what: str, sizes: Mapping[str, int], more: str = "") -> None:
    """Raises ConfigError for what no memory of this machine or device holds.

    Args:
        needed: bytes.
        what: takes them, in words.
        sizes: from `sizes_of`.
        more: that can be done.
    """
    memory = processor.memory() if backend() == "cpu" else device_memory()
    if memory is None or needed <= memory:
        return
    large = ", ".join(f"config.{name} is {value}" for name, value in sizes.items())
    lower = "lower one of them" if len(sizes) > 1 else "lower it"
    lower = lower if large else "lower the sizes of the model, of batches or of the cohort"
    raise ConfigError(
        f"{f'{large}: ' if large else ''}{what} would need {bytes_in_words(needed)}, and the memory has "
        f"{bytes_in_words(memory)}; {lower}{more}"
    )
