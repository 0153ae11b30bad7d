"""What leaves a client: upload transforms see all of it."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_ssl as fs
from fedjax_ssl import federated, methods, runs
from fedjax_ssl.errors import ConfigError, naming
from fedjax_ssl.federated import build
from fedjax_ssl.federated.messages import Upload
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.federated.uploads import (
    UPLOADS,
    UploadTransform,
    chain,
    identity,
    upload_transforms,
)
from tests import toy
from tests.methods import cases

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- tests/federated/test_uploads.py runs this block. -->"
KEY = jax.random.key(4)
NORM = 1e-2


def of_the_docs(name: str) -> Any:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (block,) = re.findall(re.escape(MARK) + r"\n```python\n(.*?)```", text, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(block, "extending.md", "exec"), namespace)
    return namespace[name]


def refusing_more_than(norm: float) -> UploadTransform:
    """Lose uploads whose numbers are larger."""

    def at_client(key, upload, trained, state):
        sent = upload._replace(weight=(), arrived=())
        return upload._replace(arrived=optax.tree.norm(sent) <= norm * 1.001)

    return UploadTransform("refusing", at_client=at_client)


def recipe_of(name: str, data, *uploads: UploadTransform):
    recipe = methods.recipe(name, cases.setup(name, data), **cases.of(name).settings)
    setup = recipe.setup._replace(uploads=uploads)
    return recipe._replace(setup=setup)


def data_for(name: str):
    kind = build(recipe_of(name, toy.weak_federation("labels"))).recipe.needs.kinds[0]
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
    method = build(recipe_of(name, data, of_the_docs("clip")(NORM), refusing_more_than(NORM)))
    try:
        _, infos = toy.train(method, KEY, data, 1)
    except ValueError as error:
        assert str(error) == "clip is for clients that send changes alone" and name != "fedavg"
        return
    assert name not in ("protofssl", "fedmatch")
    assert infos[0]["dropped_clients"] == 0
    if name == "pooled":  # trains at one place, of which nothing is sent
        return
    notes = [] if method.recipe.check is None else method.recipe.check(data)
    outside = "codes of their examples outside of their uploads, which no upload transform sees"
    assert any(outside in line for line in notes) == (name in ("xclp", "mixed"))


def test_the_largest_tenth_is_that_of_each_array() -> None:
    """Also of the small ones, which are packed into one vector."""
    params = {"a": jnp.arange(5000.0), "b": jnp.arange(1.0, 21.0), "c": -jnp.arange(1.0, 11.0)}
    packed = packing(params)
    transform = of_the_docs("top_tenth")()
    trained = SimpleNamespace(groups={"model": params})
    upload = Upload(
        {"model": packed.pack(params)}, (), {}, {}, {}, jnp.ones(()), jnp.ones((), bool)
    )
    sent = transform.at_client(KEY, upload, trained, ())
    counts = jax.tree.map(jnp.count_nonzero, packed.unpack(sent.update["model"]))
    assert counts == {"a": 500, "b": 2, "c": 1}


def test_a_lost_upload_is_lost_for_all() -> None:
    """Nobody's upload arrives: the model and what clients keep stay as they were."""
    data = toy.federation()
    lost = UploadTransform(
        "lost",
        at_client=lambda key, upload, trained, state: upload._replace(arrived=jnp.zeros((), bool)),
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
    assert program() != program(of_the_docs("clip")(NORM))


def test_transforms_have_a_state_and_see_the_sum() -> None:
    """A server that counts rounds and halves the change."""

    def at_server(key, total, context, state):
        half = jax.tree.map(lambda x: 0.5 * x, total.update)
        return total._replace(update=half), state + 1

    halving = UploadTransform("halving", lambda params: 0, at_server=at_server)
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


def doing(at_client=None, at_server=None) -> UploadTransform:
    return UploadTransform("mine", lambda params: 0, at_client, at_server)


def unchanged(key, upload, trained, state):
    return upload


def wrong_client(change):
    return doing(lambda key, upload, trained, state: change(upload))


def wrong_server(change):
    return doing(at_server=lambda key, total, context, state: change(total, state))


WRONG = {
    "broadcast": (
        wrong_client(lambda u: u._replace(update=jax.tree.map(jnp.sum, u.update))),
        r"at_client: the field 'update' changed at \['model'\].*: expected float32\[\d+.*\], got "
        r"float32\[\]",
    ),
    "type": (
        wrong_client(lambda u: u._replace(weight=jnp.ones((), jnp.int32))),
        r"at_client: the field 'weight' changed: expected float32\[\], got int32\[\]",
    ),
    "a field left out": (
        wrong_client(lambda u: u._replace(weight=None)),
        r"at_client: the field 'weight' changed: expected float32\[\], got nothing",
    ),
    "another structure": (
        wrong_client(lambda u: u._replace(terms={**u.terms, "more": jnp.ones(2)})),
        r"at_client: the field 'terms' changed at \['more'\]: expected nothing, got float32\[2\]",
    ),
    "structure alone": (
        wrong_client(lambda u: u._replace(terms={"other": ()})),
        r"at_client: the field 'terms' changed: expected the structure .* got ",
    ),
    "no upload": (wrong_client(lambda u: None), "at_client: expected an Upload, got None"),
    "a part": (wrong_client(lambda u: u.update), "at_client: expected an Upload, got dict"),
    "no number": (
        wrong_client(lambda u: u._replace(arrived="yes")),
        r"at_client: the field 'arrived' changed: expected bool\[\], got str",
    ),
    "only sums": (
        wrong_server(lambda sums, state: sums),
        r"at_server: expected \(Total, state\), got Total",
    ),
    "no sums": (
        wrong_server(lambda sums, state: None),
        r"at_server: expected \(Total, state\), got None",
    ),
    "None and a state": (
        wrong_server(lambda sums, state: (None, state)),
        "at_server: expected the Total, got None",
    ),
    "sums of another shape": (
        wrong_server(lambda sums, state: (sums._replace(weight=jnp.ones(3)), state)),
        r"at_server: the field 'weight' changed: expected float32\[\], got float32\[3\]",
    ),
    "another state": (
        wrong_server(lambda sums, state: (sums, (state, 0.0))),
        r"at_server: its state changed: expected int32\[\], got nothing",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_transform_that_returns_another_form_is_refused_in_a_sentence(case: str) -> None:
    transform, message = WRONG[case]
    data = toy.federation()
    method = build(recipe_of("fedavg", data, transform))
    begins = r"upload transform 'mine' \(of config\.uploads, or of the method\), "
    with pytest.raises(ValueError, match=begins + message):
        jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (doing(lambda upload: upload), r"at_client cannot be called with key, upload, .*line \d+"),
        (doing(at_server=lambda sums: sums), "at_server cannot be called with key, total, "),
        (UploadTransform("mine", init=lambda: 0), "init cannot be called with params "),
    ],
)
def test_a_transform_that_cannot_be_used_is_refused_before_training(transform, message) -> None:
    with pytest.raises(ConfigError, match="^upload transform .*" + message), naming("method"):
        chain(transform)


def test_python_numbers_in_an_upload_are_no_other_form() -> None:
    def at_client(key, upload, trained, state):
        return upload._replace(weight=1.0, arrived=True)

    data = toy.federation()
    usual, _ = toy.train(build(recipe_of("fedavg", data)), KEY, data, 1)
    given, _ = toy.train(build(recipe_of("fedavg", data, doing(at_client))), KEY, data, 1)
    chex.assert_trees_all_close(usual.params, given.params, atol=1e-6)


@pytest.mark.parametrize("optimizer", [federated.scaffold()])
def test_a_transform_sees_what_a_federated_optimizer_reports(optimizer) -> None:
    seen = []

    def at_client(key, upload, trained, state):
        seen.append(jax.tree.leaves(upload.reported))
        return upload

    data = toy.federation()
    recipe = recipe_of("fedavg", data, doing(at_client))
    setup = recipe.setup._replace(federated_optimizer=optimizer)
    method = build(recipe._replace(setup=setup))
    jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)
    assert seen and all(seen)


def test_a_transform_may_add_a_number_that_the_server_sees_in_sum() -> None:
    def at_client(key, upload, trained, state):
        return upload._replace(averages={**upload.averages, "mine": jnp.ones(())})

    def at_server(key, total, context, state):
        return total, total.averages["mine"].astype(int)

    data = toy.federation()
    state, infos = toy.train(
        build(recipe_of("fedavg", data, doing(at_client, at_server))), KEY, data, 1
    )
    assert state.uploads == (infos[0]["clients"],)


def test_a_builder_that_returns_no_transform_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(UPLOADS, "_builders", dict(UPLOADS._builders))
    fs.register("upload", "nothing", lambda: None)
    message = "upload transform 'nothing' returned NoneType; it has to return a .*UploadTransform"
    with pytest.raises(ValueError, match=message):
        upload_transforms(["nothing"])


def test_a_number_that_is_not_finite_is_dropped() -> None:
    """Also where a transform makes it, or a method sends it beside the change."""

    def at_client(key, upload, trained, state):
        broken = jnp.where(trained.client.id == 1, jnp.nan, 1.0)
        return upload._replace(update=jax.tree.map(lambda x: broken * x, upload.update))

    broken = UploadTransform("broken", at_client=at_client)
    data = toy.federation()
    method = build(recipe_of("fedavg", data, broken))
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

    names = ("telling",)
    config = fs.load_config("digits_fedavg", {"uploads": names, "rounds": 3})
    experiment = runs.load_experiment(config)
    federation = runs.federate(experiment, KEY)
    runs.build(experiment, federation)
    assert [one.rounds for one in told] == [3]
    with pytest.raises(ValueError, match="Did you mean 'telling'"):
        upload_transforms(["teling"])


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
