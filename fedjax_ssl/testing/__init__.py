# mypy: implicit-reexport
"""Checks for a method of one's own: the promises that every method here keeps.

chex is needed, which comes with the package and is imported here alone.
"""

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.testing.promises import (
        PROGRAMS,
        PROMISES,
        Special,
        Trial,
        check_method,
        trial_of,
    )

__getattr__, __dir__ = attach(__name__)
