"""Several methods in one local step: names, batches, what is shared, what is refused."""

import chex
import jax
import jax.numpy as jnp
import pytest

import fedjax_ssl as fs
from fedjax_ssl import federated, methods
from fedjax_ssl.federated import Recipe, Stage, Term, build, compose
from fedjax_ssl.federated.method import AtClient, AtServer
from fedjax_ssl.federated.uploads import UploadTransform
from fedjax_ssl.methods.around import AROUND, wrapped
from tests import toy
from tests.methods import cases

KEY = jax.random.key(1)
DATA = toy.weak_federation("labels")
SETUP = toy.setup(DATA, augment=toy.jitter)
QUIET = ("fixmatch", "protofssl")


def part(name: str, setup=SETUP, **settings) -> Recipe:
    return methods.recipe(name, setup, **{**cases.of(name).settings, **settings})


def entropy(step) -> jax.Array:
    """Of the view that FixMatch has, under its name."""
    log_probs = jax.nn.log_softmax(step.outputs["unlabelled/weak"].logits)
    return -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=1))


def entropy_of_its_views(recipe: Recipe) -> Recipe:
    """A part that has no batches of its own."""
    views = (view for term in recipe.stages[0].terms for view in term.views)
    view = next(view for view in views if view.name == "unlabelled/weak")
    return Recipe(recipe.setup, (Stage((Term("entropy", (view,), entropy),), None),), name="own")


def silent(recipe: Recipe) -> Recipe:
    """The same method, with losses that weigh nothing."""
    stages = tuple(
        stage._replace(terms=tuple(term._replace(weight=0.0) for term in stage.terms))
        for stage in recipe.stages
    )
    return recipe._replace(stages=stages)


def test_a_single_part_stays_as_it_is() -> None:
    recipe = part("fixmatch")
    assert compose(recipe) is recipe


@pytest.mark.parametrize(
    ("second", "kind"),
    [pytest.param("protofssl", "labels", marks=pytest.mark.thorough), ("fedul", "sets")],
)
def test_a_second_part_that_weighs_nothing_leaves_the_first_one_alone(second, kind) -> None:
    """And its batches, targets and metrics are there, under its name."""
    data = toy.weak_federation(kind)
    setup = toy.setup(data, augment=toy.jitter)
    first = part("fixmatch", setup)
    alone, infos = toy.train(build(first), KEY, data, 2)
    other = part(second, setup)
    method = build(compose(first, silent(other)))
    both, together = toy.train(method, KEY, data, 2)
    chex.assert_trees_all_close(both.params, alone.params, rtol=1e-5, atol=1e-6)
    assert both.terms.keys() - alone.terms.keys() == {
        f"{second}/{term.name}" for term in other.stages[0].terms
    }
    added = {name for name in together[0] if name.startswith(f"{second}/")}
    assert together[0].keys() - added == infos[0].keys()
    assert infos[1]["examples"] < together[1]["examples"]


def test_a_part_without_batches_shares_views_and_their_forward_pass() -> None:
    rows = []
    model = SETUP.model

    def apply(params, state, inputs, **how):
        rows.append(inputs.shape[0])
        return model.apply(params, state, inputs, **how)

    first = part("fixmatch", SETUP._replace(model=model._replace(apply=apply)), ema_decay=0.0)
    seen = []
    for recipe in (first, compose(first, entropy_of_its_views(first))):
        rows.clear()
        method = build(recipe)
        state = jax.eval_shape(method.init, KEY, DATA)
        jax.eval_shape(method.round, KEY, state, DATA)
        seen.append(sorted(rows))
    assert seen[0] == seen[1]


def test_parts_of_one_method_have_names_and_states_of_their_own() -> None:
    recipe = part("pi_model")
    method = build(compose(recipe, recipe, recipe))
    names = jax.eval_shape(method.init, KEY, DATA).terms.keys()
    own = {term.name for term in recipe.stages[0].terms}
    assert names == {f"{scope}{name}" for scope in ("", "pi_model/", "pi_model2/") for name in own}


@pytest.mark.thorough
def test_a_part_that_wraps_local_steps_finds_its_own_state() -> None:
    """The mean teacher beside FixMatch follows the network after every step."""
    recipe = part("mean_teacher")
    state, _ = toy.train(build(compose(part("fixmatch"), silent(recipe))), KEY, DATA, 2)
    (teacher,) = (
        one for name, one in state.terms.items() if name.startswith("mean_teacher/") and one
    )
    assert float(teacher.step) > 0
    moved = jax.tree.map(lambda x: float(jnp.max(jnp.abs(x))), teacher.params)
    assert max(jax.tree.leaves(moved)) > 0


def counting(recipe: Recipe) -> Recipe:
    """A part that counts clients, and whose transform counts each three times and all once more."""

    def at_client(key, upload, trained, state):
        counted = upload.averages["count"] + len(trained.local["count"]) - 1
        return upload._replace(averages={"count": 3 * counted})

    def at_server(key, summed, context, state):
        plus_one = summed.averages["count"] + summed.weight
        return summed._replace(averages={"count": plus_one}), state

    term = Term(
        "count",
        recipe.stages[0].terms[0].views,
        lambda step: (jnp.zeros(()), step.local),
        server=AtServer(
            init=lambda *given: jnp.zeros(()),
            server_update=lambda state, outcome: outcome.mean_or(state),
        ),
        client=AtClient(start=lambda *given: jnp.zeros(1), average=lambda trained: jnp.ones(())),
    )
    transform = UploadTransform("triple", at_client=at_client, at_server=at_server)
    return Recipe(recipe.setup, (Stage((term,), None),), name="own", uploads=(transform,))


def test_a_transform_of_a_part_finds_the_averages_of_its_own_terms() -> None:
    first = part("fixmatch")
    alone, _ = toy.train(build(first), KEY, DATA, 1)
    state, _ = toy.train(build(compose(first, counting(first))), KEY, DATA, 1)
    assert float(state.terms["own/count"]) == 4.0
    chex.assert_trees_all_close(state.params, alone.params, rtol=1e-6)


@pytest.mark.thorough
def test_a_server_that_is_a_member_of_the_average_stays_one() -> None:
    data = toy.federation(server=toy.NUM_SERVER)
    setup = toy.setup(data, augment=toy.jitter)
    helped = federated.with_replicas(methods.recipe("fixmatch", setup), 2)
    method = build(compose(methods.recipe("fedavg", setup), helped))
    _, infos = toy.train(method, KEY, data, 1)
    assert jnp.isfinite(infos[0]["server_loss"])
    with pytest.raises(ValueError, match="both wrap the training of clients"):
        compose(helped, helped)


def test_the_first_part_predicts() -> None:
    recipes = [part(name) for name in QUIET]
    predicted = [build(compose(*pair)).apply is None for pair in (recipes, recipes[::-1])]
    assert predicted == [False, True]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("fixmatch", {"name": "xclp", "warmup_rounds": 1}, r"xclp .* fixmatch: .*\(1, None\)"),
        ("fixmatch", {"name": "cbafed", "warmup_rounds": 0}, "several kinds of clients"),
        ("fixmatch", {"name": "fedmatch"}, "their parameter groups differ"),
        ("fl2", {"name": "fixmatch"}, "local steps of its own"),
        ("fixmatch", {"name": "alone"}, "differ in federated_optimizer; .* as alone does"),
        ("sage", {"name": "sage"}, "both weigh clients in the average"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(first, second, message) -> None:
    with pytest.raises(ValueError, match=message):
        compose(part(first), part(**second))


def test_a_closed_method_is_no_part(monkeypatch) -> None:
    monkeypatch.setitem(
        methods.METHODS._builders, "closed", lambda setup: methods.build("fedavg", setup)
    )
    assert isinstance(methods.build("closed", SETUP), federated.Method)
    with pytest.raises(ValueError, match="closed returned a Method, to which nothing can be added"):
        methods.recipe("closed", SETUP)


def nothing(recipe: Recipe) -> Recipe:
    return recipe.with_schedules(lambda key, client, drawn: None)


def broken(recipe: Recipe) -> Recipe:
    return {}["fedavg"]


def halved(recipe: Recipe) -> Recipe:
    return recipe.with_schedules(
        lambda key, client, drawn: drawn._replace(num_steps=drawn.num_steps.astype(jnp.float32))
    )


def of_one(recipe: Recipe) -> Recipe:
    return recipe.with_schedules(lambda drawn: drawn)


def first_round(*around: str) -> None:
    method = build(wrapped(part("fedavg"), around))
    state = jax.eval_shape(method.init, KEY, DATA)
    jax.eval_shape(method.round, KEY, state, DATA)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: fs.build(3), r"fs.build takes .* a fedjax_ssl.Recipe, and was given int"),
        (lambda: fs.build(None), "fs.build .* was given NoneType"),
        (lambda: fs.compose(3), "fs.compose .* was given int"),
        (lambda: fs.compose(part("fedavg"), "fixmatch"), "fs.compose .* was given str"),
        (lambda: first_round("nothing"), r"returned NoneType; .* the Schedule .*test_compose.py"),
        (lambda: first_round("halved"), r"num_steps of type float32 .* a number of type int32"),
        (lambda: first_round("of_one"), "config.around: .* cannot be called with key, client, sch"),
        (lambda: federated.with_replicas(part("fedavg"), 0), "number is 0"),
        (
            lambda: federated.with_replicas(part("xclp", warmup_rounds=1)),
            "with_replicas takes a recipe of one stage",
        ),
        (lambda: first_round("broken"), "config.around: broken raised KeyError: 'fedavg' .*test_c"),
    ],
)
def test_what_is_no_recipe_or_wrapper_is_refused_in_a_sentence(ask, message, monkeypatch) -> None:
    own = {"nothing": nothing, "broken": broken, "halved": halved, "of_one": of_one}
    monkeypatch.setattr(AROUND, "_builders", {**AROUND._builders, **own})
    with pytest.raises(ValueError, match=message):
        ask()
