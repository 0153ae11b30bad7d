"""Declarations: what passes, what does not, and the one wording; their examples are run by
test_front_door.py.
"""

import dataclasses
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.checks import Each, In, OneOf, Several, Whole, checked, declared


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (
            Whole(1),
            (1, 7, np.int64(3)),
            (0, -1, 2.0, True, "3", None, np.nan),
            "a whole number of at least 1",
        ),
        (Whole(2, 9), (2, 9), (10, 10**30), "a whole number from 2 to 9"),
        (In(), (0, 0.5, 10**9), (-1e-9, np.inf, np.nan), "a number of at least 0"),
        (In("(0, inf)"), (1e-9, np.float32(2)), (0, -1, np.inf), "a number above 0"),
        (In("[0, 1)"), (0.0, 0.99), (1, 1.0, -0.1, np.nan), r"a number in \[0, 1\)"),
        (In("[0, 180]"), (0, 180), (-1, 181, True, "90", None), r"a number in \[0, 180\]"),
        (
            Each(Whole(0)),
            ((), (1, 2), [3], np.array([4])),
            (3, "ab", None),
            "a tuple of numbers|a whole number",
        ),
    ],
)
def test_numbers_in_a_range(allowed, inside, outside, words: str) -> None:
    for value in inside:
        allowed.check("alpha", value)
    for value in outside:
        with pytest.raises(ValueError, match=rf"^alpha(\[0\])? is .*; it must be ({words})$"):
            allowed.check("alpha", value)


def test_names_get_the_nearest_one() -> None:
    with pytest.raises(
        ValueError, match=r"^name is 'adm'\. Did you mean 'adam'\? Allowed: sgd, adam$"
    ):
        OneOf(("sgd", "adam")).check("name", "adm")
    with pytest.raises(
        ValueError, match=r"^metrics names 'f2'\. Did you mean 'f1'\? Allowed: f1, ece$"
    ):
        Several(("f1", "ece")).check("metrics", ("ece", "f2"))
    with pytest.raises(
        ValueError, match=r"^metrics is \('f1', 'f1'\), which names one of them twice$"
    ):
        Several(("f1", "ece")).check("metrics", ("f1", "f1"))


def test_annotations_declare() -> None:
    assert declared(Annotated[tuple[tuple[float, ...], ...] | None, In()]) == Each(Each(In()))
    assert declared(Literal["a", "b"] | None) == OneOf(("a", "b"))
    assert declared(float) is declared(tuple[int, ...]) is None


@checked
@dataclasses.dataclass(frozen=True)
class Settings:
    rate: Annotated[float | jax.Array, In()] = 1.0
    size: Annotated[int | None, Whole(1)] = None


def test_functions_and_dataclasses_refuse_what_they_do_not_declare() -> None:
    assert Settings(2.0, size=None).rate == 2.0
    with pytest.raises(ValueError, match="size is 0; it must be a whole number of at least 1"):
        Settings(size=0)
    assert jax.jit(lambda rate: Settings(rate).rate)(jnp.asarray(-1.0)) == -1.0, (
        "a traced number cannot be looked at"
    )
