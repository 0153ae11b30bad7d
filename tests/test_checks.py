"""Checks of arguments: what passes, what does not, and the one wording."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.checks import check_choices, check_numbers, check_weights, check_whole_numbers


@pytest.mark.parametrize("value", [1, 7, np.int64(3)])
def test_whole_numbers_pass(value) -> None:
    check_whole_numbers(labels=value)


@pytest.mark.parametrize("value", [0, -1, 2.0, 2.5, True, "3", None, float("nan")])
def test_what_is_no_whole_number_is_refused(value) -> None:
    with pytest.raises(ValueError, match=r"^labels is .*; it must be a whole number of at least 1$"):
        check_whole_numbers(labels=value)


@pytest.mark.parametrize(
    ("interval", "inside", "outside", "words"),
    [
        ("[0, inf)", (0, 0.5, 10**9), (-1e-9, float("inf"), float("nan")), "a number of at least 0"),
        ("(0, inf)", (1e-9, np.float32(2)), (0, -1, float("inf")), "a number above 0"),
        ("[0, 1)", (0.0, 0.99), (1, 1.0, -0.1, float("nan")), r"a number in \[0, 1\)"),
        ("(0, 1]", (0.1, 1), (0, 1.1), r"a number in \(0, 1\]"),
        ("[0, 180]", (0, 180), (-1, 181, True, "90", None), r"a number in \[0, 180\]"),
    ],
)
def test_numbers_in_an_interval(interval: str, inside, outside, words: str) -> None:
    check_numbers(interval, **{f"value {place}": value for place, value in enumerate(inside)})
    for value in outside:
        with pytest.raises(ValueError, match=f"^alpha is .*; it must be {words}$"):
            check_numbers(interval, alpha=value)


def test_a_traced_number_cannot_be_looked_at() -> None:
    def checked(rate):
        check_weights(rate=rate)
        return rate

    assert jax.jit(checked)(jnp.asarray(-1.0)) == -1.0


def test_a_choice_that_nobody_knows_gets_the_nearest_one() -> None:
    check_choices(("sgd", "adam"), name="adam")
    with pytest.raises(ValueError, match=r"^name is 'adm'\. Did you mean 'adam'\? Allowed: sgd, adam$"):
        check_choices(("sgd", "adam"), name="adm")
    with pytest.raises(ValueError, match=r"^mode is 3\. Allowed: a, b$"):
        check_choices({"a": 1, "b": 2}, other="b", mode=3)
