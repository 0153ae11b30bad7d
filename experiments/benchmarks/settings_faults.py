"""Every field of a config with values that nobody should give: which are refused, which are taken,
what falls through.

    python experiments/benchmarks/settings_faults.py

Each case is one field, in all sections once and in `config.method` with every method, with one
value. It is handled where `resolve` raises a `ConfigError` of one line, or takes a value that a run
can use. It falls through with any other exception, with a message of several lines, and where a
number was taken that is not finite in single precision, or a whole number that 32 bits do not hold.
"""

import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl import config as configs
from fedjax_ssl import methods
from fedjax_ssl.config import fields

VALUES: tuple[Any, ...] = (
    *(None, True, "", "nobody", "\0", "../../x"),
    *(0, 1, -1, 10**9, 2**31, -(2**31), 2**63, 10**30),
    *(0.0, 0.5, -0.5, 1.0, 1e30, -1e300, 1e300, 1e-300, math.nan, math.inf, -math.inf),
    *((), (0,), (-1, 2), ("a",), (None,), (math.nan,), ((1,), (2,)), (2**63,)),
)


class Found(NamedTuple):
    """What became of the cases."""

    tried: int
    refused: int  # with one message
    taken: int
    fell_through: list[str]  # a line each


def cases() -> Iterator[tuple[str, str, Any]]:
    """Method, dotted field and value of every case."""
    for method in methods.available():
        for name in fields.options_of(fields.default(method)):
            if name.startswith("method.") or method == "fedavg":
                yield from ((method, name, value) for value in VALUES)


def try_all(every: int = 1) -> Found:
    """Resolves every case, or with `every=5` every fifth: 5 does not divide the number of
    values, so each is tried.
    """
    tried = refused = taken = 0
    fell = []
    for method, name, value in itertools.islice(cases(), 0, None, every):
        tried += 1
        try:
            stored = _resolved(method, name, value)
        except configs.ConfigError as error:
            refused += 1
            if "\n" in str(error).strip():
                fell.append(f"{method} {name}={value!r}: several lines: {error}")
        except Exception as error:
            fell.append(
                f"{method} {name}={value!r}: {type(error).__name__}: {str(error).splitlines()[0]}"
            )
        else:
            taken += 1
            if not _usable(stored) and not (name == "seed" and 0 <= stored < 2**32):
                fell.append(f"{method} {name}={value!r}: was taken as {stored!r}")
    return Found(tried, refused, taken, fell)


def _resolved(method: str, name: str, value: Any) -> Any:
    """What a resolved config has in a field that was given a value, in a config file or in
    Python.
    """
    config = configs.with_settings(fields.default(method), [(name, value)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fields.get(configs.resolve(config), name)


def _usable(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_usable(float(one)) if isinstance(one, int) else _usable(one) for one in value)
    if isinstance(value, int):
        return abs(value) < 2**31
    return not isinstance(value, float) or abs(value) <= float(np.finfo(np.float32).max)


if __name__ == "__main__":
    found = try_all()
    print(*found.fell_through, sep="\n")
    print(f"tried {found.tried:,}, refused {found.refused:,}, taken {found.taken:,}", end=", ")
    print(f"fell through {len(found.fell_through):,}")
