"""The table that every kind of thing in a config is looked up in, and things of a user's own in all of them."""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.config.fields import CHOICES
from fedjax_ssl.data import Dataset, Split
from fedjax_ssl.data.federation.partition import iid
from fedjax_ssl.data.federation.supervision import per_class
from fedjax_ssl.experiment import build_method, federate, load_experiment
from fedjax_ssl.federated import FederatedOptimizer, LocalTraining, fedprox
from fedjax_ssl.models.layers import Head, lecun_normal
from fedjax_ssl.registry import Option, Registry


def square(size: int, fill: Literal["none", "dots"] = "none", scale: float | jax.Array | None = None) -> str:
    """A square with equal
    sides.

    And more.
    """
    return f"{size} {fill} {scale}"


def circle(radii: Sequence[float] = (1.0,), canvas: str = "", bold=False) -> str:
    return f"{radii} on {canvas}"


FORMS = Registry("form", {"square": square, "circle": (circle, "A circle.")}, given=("canvas",), common={"count": int})


def test_options_and_their_types_come_from_the_builders() -> None:
    assert FORMS.available() == {"square": "A square with equal sides.", "circle": "A circle."}
    assert FORMS.options("circle") == {"radii": Option(tuple, (1.0,)), "bold": Option(bool, False)}
    assert FORMS.fields() == {"count": int, "size": int, "fill": str, "scale": float, "radii": tuple, "bold": bool}
    assert FORMS.takes("circle", "canvas") and not FORMS.takes("square", "canvas")
    assert FORMS.build("circle", canvas="paper") == "(1.0,) on paper"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sqare", {}, "^unknown form 'sqare'. Did you mean 'square'\\? Available: square, circle$"),
        ("square", {"siz": 1}, "^form 'square' has no option 'siz'. Did you mean 'size'\\? Its options: size, fill,"),
        ("square", {}, "^form 'square' needs the option 'size'$"),
        ("nowhere:square", {}, "^form 'nowhere:square' is not there: No module named 'nowhere'"),
        ("math:square", {}, "^form 'math:square' is not there: module 'math' has no attribute 'square'"),
    ],
)
def test_what_is_not_there_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FORMS.build(name, **options)


@pytest.mark.parametrize("section", CHOICES)
def test_every_choice_is_described_and_its_options_are_fields_of_the_config(section: str) -> None:
    registry, fields = CHOICES[section], configs.default()[section]
    assert all(len(line) > 8 for line in registry.available().values())
    for name in registry:
        assert set(registry.options(name)) <= set(fields)
    for option, kind in registry.fields().items():
        assert fields.get_type(option) is kind


def two_blobs(gap: float = 4.0) -> Dataset:
    labels = np.arange(60, dtype=np.int32) % 2
    inputs = (gap * labels[:, None] + np.random.default_rng(0).normal(size=(60, 3))).astype(np.float32)
    return Dataset("blobs", Split(inputs, labels, None), None, ("low", "high"), input_max=1.0)


def equal_parts(extra: int = 0):
    return iid()


def some_of_each(labels: int):
    return per_class(labels)


def louder(factor: float = 2.0):
    return lambda key, inputs: factor * inputs


class Line(nn.Module):
    num_classes: int
    width: int = 4
    normalize_features: bool = False
    aux_head: bool = False

    @nn.compact
    def __call__(self, inputs, train: bool, mask=None):
        features = nn.relu(nn.Dense(self.width)(inputs))
        return Head(self.num_classes, self.normalize_features, self.aux_head, lecun_normal)(features)


def pulled(local: LocalTraining, strength: float = 0.1) -> FederatedOptimizer:
    return fedprox(strength * local.learning_rate)


OWN = {
    "data": (two_blobs, {"gap": 8.0}),
    "partition": (equal_parts, {"num_clients": 3}),
    "supervision": (some_of_each, {"labels": 5}),
    "augment": (louder, {"factor": 3.0}),
    "model": (Line, {"width": 5}),
    "federated": (pulled, {"strength": 0.2}),
}


def test_a_config_can_name_things_of_the_users_own_in_every_section(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_things")
    module.__dict__.update({builder.__name__: builder for builder, _ in OWN.values()})
    monkeypatch.setitem(sys.modules, "own_things", module)
    config = configs.default()
    config.rounds, config.data.test_fraction = 1, 0.2
    with config.unlocked():  # options that no choice of ours has are no fields yet
        for section, (builder, options) in OWN.items():
            config[section].update({"name": f"own_things:{builder.__name__}", **options})
    experiment = load_experiment(config)
    assert experiment.dataset.train.x[1].mean() > 5
    assert experiment.config.federated.strength == 0.2
    federation = federate(experiment, jax.random.key(0))
    assert (federation.num_clients, federation.summary()["labelled_examples"]) == (3, 30)
    method = build_method(experiment, federation, {"federated.strength": jnp.asarray(0.3)})
    state, info = method.round(jax.random.key(0), method.init(jax.random.key(0), federation), federation)
    assert {leaf.shape for leaf in jax.tree.leaves(state.params)} >= {(5,)}
    assert np.isfinite(info["loss"])
    with config.unlocked():
        config.data.gapp = 1.0
    with pytest.raises(configs.ConfigError, match=r"config\.data\.gapp is no field .*Did you mean 'config\.data\.gap'"):
        configs.resolve(config)


def test_an_option_of_another_dataset_is_refused() -> None:
    config = configs.default()
    config.data.writers = 3
    with pytest.raises(configs.ConfigError, match=r"^config\.data: dataset 'digits' has no option 'writers'"):
        configs.resolve(config)


def test_a_published_dataset_takes_a_folder_and_an_embedded_one_does_not() -> None:
    with pytest.raises(ValueError, match="dataset 'digits' is in the package and takes no path"):
        data.load("digits", path="somewhere")
