"""The contract (docs/architecture.md): one suite over every registered method.

Every method trains the toy federation of the kind that it learns from, with one round of its first
stage if it has two, so that both stages run in one compiled program. The promises are those of
`fedjax_ssl.testing`, one test each; what is special about a method is said in
`tests/methods/cases.py`. `make test` compiles one method for each mechanism of the engine and
traces all the others, which `make thorough` compiles.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.federated import FederatedOptimizer
from fedjax_ssl.methods.around.slow_clients import slow_clients
from fedjax_ssl.methods.around.trained_part import REST
from fedjax_ssl.methods.compose import compose
from fedjax_ssl.testing import PROMISES, check_method, promises
from fedjax_ssl.testing.promises import COMMON, ROUNDS, Promise, Trial, key
from tests import toy
from tests.methods import cases

METHODS = sorted(methods.available())
OPTIMIZERS: dict[str, FederatedOptimizer] = {  # beside fedavg, which all other tests use
    "fedprox": federated.fedprox(0.1),
    "scaffold": federated.scaffold(),
    "feddyn": federated.FEDERATED_OPTIMIZERS.build("feddyn", alpha=0.01),
    "fednova": federated.FEDERATED_OPTIMIZERS.build("fednova", mu=0.1),
    "fedavgm": federated.fedopt(optax.sgd(1.0, momentum=0.5)),
    "fedadam": federated.fedopt(optax.adam(0.03, b1=0.9, b2=0.99, eps=1e-3)),
    "grouped": federated.grouped((3, 3)),
    "fedyogi": federated.fedopt(optax.yogi(0.03, b1=0.9, b2=0.99, eps=1e-3)),
}
federation = functools.cache(toy.weak_federation)


def quick_are(quick: Collection[str], names: Collection[str] = METHODS) -> list[Any]:
    """The methods as parameters of a test; `make test` takes the quick ones only."""
    return [
        pytest.param(name, marks=() if name in quick else pytest.mark.thorough) for name in names
    ]


@pytest.fixture(scope="module", params=quick_are(cases.MECHANISMS))
def case(request: pytest.FixtureRequest) -> Trial:
    name = request.param
    return promises.trial_of(functools.partial(cases.build, name), cases.special(name), federation)


def programs_of_their_own(
    names: Collection[str] = METHODS, quick: Collection[str] = ()
) -> Callable[..., Any]:
    """For a test that compiles more per method: these methods, of which `make test` takes the
    `quick` ones only.
    """
    return pytest.mark.parametrize("case", quick_are(quick, names), indirect=True, scope="module")


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_promise(case: Trial, promise: Promise) -> None:
    promise(case)


def test_a_broken_client_whose_rows_are_not_the_first(case: Trial) -> None:
    promises.a_client_full_of_nan_is_as_good_as_absent(case, client=5)


@pytest.mark.parametrize("name", quick_are(set(METHODS) - set(cases.MECHANISMS)))
def test_rounds_are_one_scan_with_settings_as_numbers(name: str) -> None:
    """Traced, not computed. A scan refuses rounds that change the types of their state."""
    data = federation(cases.build(name, federation("labels")).recipe.needs.kinds[0])
    numbers = jax.tree.map(
        lambda _: jax.ShapeDtypeStruct((), jnp.float32, weak_type=True),
        cases.traceable_numbers(name),
    )

    def train(numbers: dict[str, jax.Array], key: jax.Array) -> tuple[Any, Any]:
        build = functools.partial(cases.build, name, numbers=numbers)
        return promises.in_one_scan(*promises.in_chunks_with_padding(build, data))(key)

    _, infos = jax.eval_shape(train, numbers, key())
    shapes = {
        one.times.shape[:1] if isinstance(one, federated.Count) else one.shape
        for one in infos.values()
    }
    assert infos.keys() >= COMMON and shapes == {(ROUNDS,)}


@programs_of_their_own(quick={"fedavg"})
def test_keys_placement_and_padding_do_not_matter(case: Trial) -> None:
    promises.keys_placement_and_padding_do_not_matter(case)


@programs_of_their_own(cases.MECHANISMS)
def test_lanes_on_two_devices_train_every_client_as_if_alone(case: Trial) -> None:
    promises.lanes_train_every_client_as_if_alone(case)


@programs_of_their_own()
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_federated_optimizer_fits(case: Trial, name: str) -> None:
    promises.a_federated_optimizer_fits(case, OPTIMIZERS[name])


@programs_of_their_own(cases.MECHANISMS, quick={"fedavg"})
def test_a_server_side_optimizer_trains(case: Trial) -> None:
    method = case.build(case.data, federated_optimizer=OPTIMIZERS["fedadam"])
    state, infos = toy.train(method, key(), case.data, ROUNDS)
    chex.assert_tree_all_finite(state)
    assert promises.loss_on_labels(infos[-1]) < promises.loss_on_labels(infos[1])


@functools.cache
def federated_averaging(second_head: bool) -> tuple[Any, Any]:
    """Parameters after one and after two rounds of federated averaging on labels, for a network
    of one head or two.
    """
    like = "fedsiam" if second_head else "fedavg"
    plain = methods.build("fedavg", cases.setup(like, federation("labels")))
    one_round = jax.jit(plain.round)
    start = jax.jit(plain.init)(key(), federation("labels"))
    one, _ = toy.run(one_round, key(), start, federation("labels"), 1)
    two, _ = toy.run(one_round, key(), one, federation("labels"), 1)
    return one.params, two.params


def begins_with_labels(name: str) -> bool:
    """Whether a method has a first stage, and of class labels: FedPL's is of the majority labels
    of sets.
    """
    return (
        "warmup_rounds" in methods.settings(name)
        and cases.build(name, federation("labels")).recipe.needs.kinds[0] == "labels"
    )


@programs_of_their_own(list(filter(begins_with_labels, METHODS)), quick=cases.MECHANISMS)
def test_first_stage_is_labels_only_federated_averaging(case: Trial) -> None:
    one, two = federated_averaging("aux_head" in case.start.params["model"])
    first, _ = toy.run(case.round, key(), case.start, case.data, 1)
    chex.assert_trees_all_equal(first.params, one)
    second, _ = toy.run(case.round, key(), first, case.data, 1)
    assert float(optax.tree.norm(optax.tree.sub(second.params, two))) > 1e-4


PARTS = ("head", "*head,dense1.bias")  # of `config.model.train`


def with_part(name: str, train: str, data: Any, **changes: Any) -> Any:
    """The method of a case, on its toy network of which a part is trained."""
    options = {"hidden": (8,), **cases.of(name).model}
    shape = data.inputs.shape[1:]
    model = models.build("mlp", num_classes=data.num_classes, input_shape=shape, **options)
    setup = toy.setup(data, model=model, augment=toy.jitter, **changes)
    return methods.build(name, setup, train=train, **cases.of(name).settings)


# Methods with a reason against a mode, and what they say.
REFUSED = {
    ("protofssl", "head"): "learns by features",
    ("fedrep", "head"): "trains body apart",
    ("fedmatch", "head"): "are no parts of the network",
    ("fedmatch", "*head,dense1.bias"): "are no parts of the network",
}


@pytest.mark.parametrize("train", PARTS)
@pytest.mark.parametrize("name", quick_are({"fedavg"}))
def test_a_part_of_the_network_is_trained_alone(name: str, train: str) -> None:
    """Traced, not computed: the rest is a group of its own, which optimizers do not see."""
    if (name, train) in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name, train]):
            with_part(name, train, federation("labels"))
        return
    data = federation(cases.build(name, federation("labels")).recipe.needs.kinds[0])
    method = with_part(name, train, data)
    start = jax.eval_shape(method.init, key(), data)
    after, _ = jax.eval_shape(method.round, key(), start, data)
    chex.assert_trees_all_equal_shapes_and_dtypes(start, after)
    rest = {"kernel"} if "dense1" in train else {"kernel", "bias"}
    assert {*start.params[REST]["dense1"]} == rest


@pytest.mark.thorough
@pytest.mark.parametrize("train", PARTS)
def test_a_trained_part_keeps_the_promises(train: str) -> None:
    build = functools.partial(with_part, "fixmatch", train)
    trial = promises.trial_of(build, cases.special("fixmatch"), federation)
    # A head on eight random features learns less than the whole network, and sends less.
    others = (
        promises.a_separable_problem_is_learned,
        promises.every_round_reports_the_common_metrics_and_the_loss_falls,
    )
    for promise in PROMISES:
        if promise not in others:
            promise(trial)


@pytest.mark.thorough
@pytest.mark.promise
def test_a_composition_keeps_the_promises() -> None:
    """FixMatch with FedUL's loss, on clients of which some are slow."""

    def both(setup: Any) -> Any:
        settings = {"fixmatch": {"threshold": 0.5}, "unlabelled_ratio": 2}
        return slow_clients(compose(setup, ("fedul", "fixmatch"), **settings))

    check_method(both, promises.Special(learns_without_labels=True))


def test_a_broken_promise_is_named() -> None:
    def restless(setup: Any) -> Any:
        recipe = methods.recipe("fedavg", setup)

        def after_average(before: Any, after: Any, data: Any) -> Any:
            seen = 1e-3 * jnp.sum(data.labels).astype(jnp.float32)
            return after._replace(params=jax.tree.map(lambda x: x + seen, after.params))

        return recipe._replace(after_average=after_average)

    with pytest.raises(AssertionError, match="a promise is broken: "):
        check_method(restless)
