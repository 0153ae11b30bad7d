"""What the parity tests share: fixtures, federations made of them, and draws without chance.

The released code runs on batches in stored order, so ours has to as well: in these tests the draws
of `jax.random` count upwards.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import federated, models
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Setup
from fedjax_ssl.models import Model
from tests import toy

FIXTURES = Path(__file__).resolve().parent / "fixtures"
KEY = jax.random.key(0)


def fixture(name: str) -> dict[str, np.ndarray]:
    """The arrays of `fixtures/NAME.npz`."""
    with np.load(FIXTURES / f"{name}.npz") as arrays:
        return dict(arrays)


def under(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, Any]:
    """The arrays whose names start with `prefix/`, as nested dicts: "a/kernel" is
    ["a"]["kernel"].
    """
    tree: dict[str, Any] = {}
    for name, value in arrays.items():
        if name.startswith(f"{prefix}/"):
            *path, last = name.removeprefix(f"{prefix}/").split("/")
            node = tree
            for part in path:
                node = node.setdefault(part, {})
            node[last] = value
    return tree


def starting_from(model: Model, params: Any, state: Any = None) -> Model:
    """The network with these first weights, and batch statistics if it has some."""

    def init(key: jax.Array) -> tuple[Any, Any]:
        own, statistics = model.init(key)
        given = jax.tree.map(lambda mine, theirs: jnp.asarray(theirs, mine.dtype), own, params)
        assert jax.tree.map(jnp.shape, given) == jax.tree.map(jnp.shape, own)
        return given, statistics if state is None else jax.tree.map(jnp.asarray, state)

    return model._replace(init=init)


def without_chance(monkeypatch: pytest.MonkeyPatch, share: float = 0.5) -> None:
    """Random bits count upwards, so that samplers keep the stored order; a share of a mixture is
    always the same.
    """

    def bits(key: jax.Array, shape: tuple[int, ...] = (), dtype: Any = jnp.uint32) -> jax.Array:
        return jnp.arange(prod(shape), dtype=dtype).reshape(shape)

    monkeypatch.setattr(jax.random, "bits", bits)
    monkeypatch.setattr(
        jax.random, "beta", lambda key, a, b, shape=(), dtype=float: jnp.full(shape, share, dtype)
    )


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of two trees with the same names."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs), (
        jax.tree.structure(ours),
        jax.tree.structure(theirs),
    )
    gaps = jax.tree.map(
        lambda a, b: float(np.max(np.abs(np.asarray(a, np.float64) - b))), ours, theirs
    )
    return max(jax.tree.leaves(gaps))


def perceptron(data: FederatedData, first: Any) -> Model:
    """The network of most fixtures, a hidden layer with batch norm, with these first weights."""
    network = models.build(
        "mlp", num_classes=3, input_shape=data.inputs.shape[1:], hidden=(5,), norm="bn"
    )
    return starting_from(network, first)


def labels_at_server(said: Mapping[str, np.ndarray]) -> tuple[FederatedData, Setup]:
    """Federation and settings that SemiFL's and (FL)^2's code have in common."""
    server = int(said["server"])
    sizes = said["sizes"]
    rows = np.split(server + np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    data = toy.dealt(
        said["inputs"],
        said["labels"],
        rows,
        [0] * len(rows),
        server=np.arange(server),
        num_classes=3,
    )
    setup = toy.setup(
        data,
        model=perceptron(data, under(said, "first")),
        learning_rate=0.1,
        federated_optimizer=federated.fedopt(optax.sgd(1.0, 0.5)),
        local_optimizer=federated.local_optimizer(
            momentum=0.9, nesterov=True, weight_decay=5e-4, clip_norm=1.0
        ),
        batch_size=8,
        local_epochs=2,
        keep_optimizer=True,
        strong_augment=lambda key, inputs: inputs[:, ::-1],
    )
    return data, setup


def gaps_of(state: Any, theirs: dict[str, Any], name: object) -> dict[str, float]:
    """The largest differences of weights and of batch statistics from those of the code.

    Args:
        state: ours.
        theirs: weights of the code, with the statistics among them.
        name: of this comparison, for messages.
    """
    statistics = {"norm1": {part: theirs["norm1"].pop(part) for part in ("mean", "var")}}
    return {
        f"weights {name}": difference(state.params["model"], theirs),
        f"statistics {name}": difference(state.model_state, statistics),
    }
