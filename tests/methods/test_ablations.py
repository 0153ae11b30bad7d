"""Settings that papers vary and no other test names: each one traces, and changes the program."""

import functools
import re
from typing import Any

import jax
import pytest

from fedjax_ssl.federated import Method
from tests import toy
from tests.methods import cases

# (method, what has to be set for it to count, setting, value)
ABLATIONS: list[tuple[str, dict[str, Any], str, Any]] = [
    ("xclp", {"warmup_rounds": 0}, "graph_augment", True),
    ("per_client_lp", {"warmup_rounds": 0}, "graph_augment", True),
    ("network_pseudo_label", {"warmup_rounds": 0}, "augment_predictions", True),
    ("fedsiam", {"warmup_rounds": 0}, "head_weight", 0.5),
    ("protofssl", {}, "num_support", 2),
    ("fedmatch", {"lr_schedule": "client"}, "preset", "code"),
    ("mixed", {"warmup_rounds": 0}, "anchor_confidence", 0.5),
    ("fl2", {}, "perturb", "sam"),
    ("cbafed", {"warmup_rounds": 0}, "tail_second", False),
    ("sage", {}, "labelled_copies", 2000.0),
    ("fixmatch", {}, "augment_labelled", False),
    ("mixmatch", {}, "num_augmentations", 3),
    ("fedrgd", {}, "user_loss", "self_training"),
]


@functools.cache
def program(name: str, settings: tuple[tuple[str, Any], ...]) -> str:
    """What a method computes: init, a round and predictions, as text."""
    plain = cases.build(name, toy.federation())
    data = toy.weak_federation("coarse" if name == "mixed" else plain.recipe.needs.kinds[0])
    changes: dict[str, Any] = {"rounds": 10}
    if name == "fedmatch":
        rows = data.test_index[-5:]
        data = toy.changed(data, valid_index=rows, num_valid=5)
    method: Method = cases.build(name, data, dict(settings), **changes)
    key = jax.random.key(0)
    state = jax.eval_shape(method.init, key, data)
    traced = (
        jax.make_jaxpr(method.init)(key, data),
        jax.make_jaxpr(method.round)(key, state, data),
        jax.make_jaxpr(method.predict)(state, data.inputs[:2]),
    )
    return re.sub(r"0x[0-9a-f]+", "", "\n".join(map(str, traced)))


@pytest.mark.parametrize(("name", "given", "setting", "value"), ABLATIONS)
def test_an_ablation_changes_the_program(name: str, given: dict, setting: str, value: Any) -> None:
    plain = tuple(given.items())
    assert program(name, (*plain, (setting, value))) != program(name, plain)


def test_the_text_of_a_program_tells_nothing_else() -> None:
    assert program.__wrapped__("sage", ()) == program("sage", ())
