"""The table that every kind of thing in a config is looked up in, and things of a user's own in
all of them.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.config.fields import CHOICES
from fedjax_ssl.registry import Option, Registry
from fedjax_ssl.runs.build import build, federate, load_experiment


def square(
    size: int, fill: Literal["none", "dots"] = "none", scale: float | jax.Array | None = None
) -> str:
    """A square with equal
    sides.

    And more.
    """
    return f"{size} {fill} {scale}"


def circle(radii: Sequence[float] = (1.0,), canvas: str = "", bold=False) -> str:
    return f"{radii} on {canvas}"


FORMS = Registry(
    "form",
    {"square": square, "circle": (circle, "A circle.")},
    given=("canvas",),
    common={"count": int},
)


def test_options_and_their_types_come_from_the_builders() -> None:
    assert FORMS.available() == {"square": "A square with equal sides.", "circle": "A circle."}
    assert FORMS.options("circle") == {"radii": Option(tuple, (1.0,)), "bold": Option(bool, False)}
    assert {name: field.type for name, field in FORMS.fields().items()} == {
        "count": int,
        "size": int,
        "fill": str,
        "scale": float,
        "radii": tuple,
        "bold": bool,
    }
    assert FORMS.takes("circle", "canvas") and not FORMS.takes("square", "canvas")
    assert FORMS.build("square:3", fill="dots") == "3 dots None" and "size" not in FORMS.options(
        "square:3"
    )
    assert FORMS.build("circle", canvas="paper") == "(1.0,) on paper"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "sqare",
            {},
            "^unknown form 'sqare'. Did you mean 'square'\\? Available: square, circle, module:function of your own$",
        ),
        ("square", {}, "^form 'square' needs the option 'size'$"),
        (
            "math:square",
            {},
            "^form 'math:square' is not there: .*math.* has no 'square'. Did you mean 'math:sqrt'",
        ),
    ],
)
def test_what_is_not_there_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FORMS.build(name, **options)


@pytest.mark.parametrize("section", CHOICES)
def test_every_choice_is_described_and_its_options_are_fields_of_the_config(section: str) -> None:
    registry = CHOICES[section]
    fields = configs.default()[section]
    assert all(len(line) > 8 for line in registry.available().values())
    for name in registry:
        assert set(registry.options(name)) <= set(fields)
    for option, field in registry.fields().items():
        assert fields.get_type(option) is field.type


OWN = {
    "method": ("method", {"small_batches": True}),
    "data": ("dataset", {"gap": 8.0}),
    "partition": ("partition", {"num_clients": 3, "block": 4}),
    "supervision": ("supervision", {"highest": 0}),
    "augment": ("augmentation", {"factor": 3.0}),
    "cohort": ("cohort", {"least": 5}),
    "model": ("model", {"width": 5}),
    "federated": ("optimizer", {"strength": 0.2}),
}


PAGE = (Path(__file__).resolve().parent.parent / "docs" / "by_name.md").read_text(encoding="utf-8")
(BLOCK,) = re.findall(
    r"<!-- tests/test_registry.py runs this block. -->\n```python\n(.*?)```", PAGE, re.DOTALL
)


def test_a_config_can_name_things_of_the_users_own_in_every_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("my_things")
    monkeypatch.setitem(sys.modules, "my_things", module)
    exec(compile(BLOCK, "by_name.md", "exec"), module.__dict__)
    config = configs.default()
    config.rounds = 1
    config.data.test_fraction = 0.2
    with config.unlocked():  # options that no choice of ours has are no fields yet
        for section, (builder, options) in OWN.items():
            config[section].update({"name": f"my_things:{builder}", **options})
    experiment = load_experiment(config)
    assert experiment.dataset.train.x[1].mean() > 5
    assert experiment.config.federated.strength == 0.2
    federation = federate(experiment, jax.random.key(0))
    assert (federation.num_clients, federation.summary()["labelled_examples"]) == (3, 24)
    method = build(experiment, federation, {"federated.strength": jnp.asarray(0.3)}).method
    state, info = jax.jit(method.round)(
        jax.random.key(0), method.init(jax.random.key(0), federation), federation
    )
    assert {leaf.shape for leaf in jax.tree.leaves(state.params)} >= {(5,)}
    assert np.isfinite(info["loss"])
    with config.unlocked():
        config.data.gapp = 1.0
    with pytest.raises(
        configs.ConfigError,
        match=r"unknown field config\.data\.gapp\. Did you mean 'config\.data\.gap'",
    ):
        configs.resolve(config)


def test_a_function_that_is_defined_anew_has_its_new_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first(setup, *, weight: float = 1.0):
        """As a cell of a notebook has it."""

    def second(setup, *, threshold: float = 0.5):
        """As the same cell has it a minute later."""

    cells = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", cells)
    for method, options in ((first, ["weight"]), (second, ["threshold"])):
        monkeypatch.setattr(cells, "method", method, raising=False)
        assert list(FORMS.options("cells:method"))[1:] == options


def test_an_option_of_another_dataset_is_refused() -> None:
    config = configs.default()
    config.data.writers = 3
    with pytest.raises(
        configs.ConfigError, match=r"^config\.data: dataset 'digits' has no option 'writers'"
    ):
        configs.resolve(config)


def test_a_published_dataset_takes_a_folder_and_an_embedded_one_does_not() -> None:
    with pytest.raises(ValueError, match="dataset 'digits' takes no path="):
        data.load("digits", path="somewhere")


@pytest.mark.parametrize("kind", ["data", "dataset"])
def test_a_dataset_is_registered_under_the_word_for_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in ("_builders", "_lines", "_options"):
        monkeypatch.setattr(data.SOURCES, table, {**getattr(data.SOURCES, table)})
    fs.register(kind, "small", lambda: fs.load_dataset("digits"))
    assert fs.load_dataset("small").name == "digits"
