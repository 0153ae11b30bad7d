"""What leaves a client: upload transforms, and that nothing travels beside them."""

import ast
import re
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ssl as fs
from fedjax_ssl import federated, methods, runs
from fedjax_ssl.federated import build
from fedjax_ssl.federated.uploads import (
    EVERYTHING,
    UPLOADS,
    UploadTransform,
    chain,
    drop_non_finite,
    identity,
    upload_transforms,
)
from tests import toy
from tests.methods import cases

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- tests/federated/test_uploads.py runs this block. -->"
KEY = jax.random.key(4)
NORM = 1e-2


def clip_of_the_docs() -> Any:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (block,) = re.findall(re.escape(MARK) + r"\n```python\n(.*?)```", text, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(block, "extending.md", "exec"), namespace)
    return namespace["clip"]


def refusing_more_than(norm: float) -> UploadTransform:
    """Lose uploads whose numbers are larger."""

    def at_client(key, upload, trained, state):
        sent = upload._replace(weight=(), arrived=())
        return upload._replace(arrived=optax.tree.norm(sent) <= norm * 1.001)

    return UploadTransform("refusing", at_client=at_client, covers=EVERYTHING)


def recipe_of(name: str, data, *uploads: UploadTransform):
    recipe = methods.recipe(name, cases.setup(name, data), **cases.of(name).settings)
    setup = recipe.setup._replace(uploads=uploads)
    return recipe._replace(setup=setup)


def data_for(name: str):
    kind = build(recipe_of(name, toy.weak_federation("labels"))).needs[0]
    return toy.weak_federation(kind)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("fedavg", "protofssl", "xclp")
        else pytest.param(name, marks=pytest.mark.thorough)
        for name in sorted(methods.available())
    ],
)
def test_all_that_a_client_sends_is_clipped_or_the_method_is_refused(name: str) -> None:
    data = data_for(name)
    try:
        method = build(recipe_of(name, data, clip_of_the_docs()(NORM), refusing_more_than(NORM)))
    except ValueError as error:
        assert "upload transform 'clip' covers" in str(error) and "also send" in str(error)
        assert name != "fedavg"
        return
    assert name not in ("protofssl", "xclp", "fedmatch")
    _, infos = toy.train(method, KEY, data, 1)
    assert infos[0]["dropped_clients"] == 0


def test_a_lost_upload_is_lost_for_all() -> None:
    """Nobody's upload arrives: the model and what clients keep stay as they were."""
    data = toy.federation()
    lost = UploadTransform(
        "lost",
        at_client=lambda key, upload, trained, state: upload._replace(arrived=jnp.zeros((), bool)),
        covers=EVERYTHING,
    )
    recipe = recipe_of("fedavg", data, lost)
    keeping = {"keep_optimizer": True, "federated_optimizer": federated.scaffold()}
    method = build(recipe._replace(setup=recipe.setup._replace(**keeping)))
    before, _ = toy.train(method, KEY, data, 0)
    after, infos = toy.train(method, KEY, data, 1)
    chex.assert_trees_all_equal(before._replace(round=after.round), after)
    assert infos[0]["dropped_clients"] == infos[0]["clients"] > 0


def test_no_transform_and_one_that_does_nothing_are_the_same_program() -> None:
    data = toy.federation()

    def program(*uploads: UploadTransform) -> str:
        method = build(recipe_of("fedavg", data, *uploads))
        state = method.init(KEY, data)
        return str(jax.make_jaxpr(method.round)(KEY, state, data))

    assert program() == program(identity()) == program(chain())
    assert program() != program(drop_non_finite())


def test_transforms_have_a_state_and_see_the_sum() -> None:
    """A server that counts rounds and halves the change."""

    def at_server(key, summed, context, state):
        half = jax.tree.map(lambda x: 0.5 * x, summed.update.change)
        return summed._replace(update=summed.update._replace(change=half)), state + 1

    halving = UploadTransform("halving", lambda params: 0, at_server=at_server, covers=EVERYTHING)
    data = toy.federation()
    usual, _ = toy.train(build(recipe_of("fedavg", data)), KEY, data, 1)
    halved, _ = toy.train(build(recipe_of("fedavg", data, halving)), KEY, data, 1)
    start = build(recipe_of("fedavg", data)).init(KEY, data)

    def change(after: Any) -> Any:
        return jax.tree.map(jnp.subtract, after.params, start.params)

    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(0.5 * one, two, atol=1e-6),
        change(usual),
        change(halved),
    )
    assert halved.uploads == (1,)


def test_a_number_that_is_not_finite_is_dropped() -> None:
    def at_client(key, upload, trained, state):
        broken = jnp.where(trained.client.id == 1, jnp.nan, 1.0)
        return upload._replace(update=jax.tree.map(lambda x: broken * x, upload.update))

    broken = UploadTransform("broken", at_client=at_client, covers=EVERYTHING)
    data = toy.federation()
    method = build(recipe_of("fedavg", data, broken, drop_non_finite()))
    state, infos = toy.train(method, KEY, data, 1)
    assert infos[0]["dropped_clients"] == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_a_config_names_transforms_with_facts_of_the_run(monkeypatch) -> None:
    monkeypatch.setattr(UPLOADS, "_builders", dict(UPLOADS._builders))
    told = []

    @fs.register("upload")
    def telling(facts) -> UploadTransform:
        told.append(facts)
        return identity()

    names = ("drop_non_finite", "telling")
    config = fs.load_config("digits_fedavg", {"uploads": names, "rounds": 3})
    experiment = runs.load_experiment(config)
    federation = runs.federate(experiment, KEY)
    runs.build(experiment, federation)
    assert [one.rounds for one in told] == [3]
    with pytest.raises(ValueError, match="Did you mean 'drop_non_finite'"):
        upload_transforms(["drop_nonfinite"])


def test_what_clients_send_keep_and_log_has_no_fixed_names() -> None:
    """No subscript with a fixed text on what is summed, stacked, uploaded, kept or reported."""
    typed = {"summed", "stacked", "upload", "uploads", "kept", "report", "statistics", "measured"}
    found = []
    for path in sorted((ROOT / "fedjax_ssl" / "federated").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
                continue
            value = node.value
            name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
            if isinstance(node.slice.value, str) and name in typed:
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not found
