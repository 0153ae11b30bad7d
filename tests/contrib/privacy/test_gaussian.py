"""Client-level privacy: clipping, noise, the adaptive norm, cohorts, and what is refused."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import federated, methods
from fedjax_ssl.contrib.privacy.gaussian import (
    Clip,
    Gaussian,
    Sampled,
    clipped,
    moved,
    noise_beside_a_count,
    poisson,
    private_sum,
)
from fedjax_ssl.federated import build
from fedjax_ssl.federated.messages import Upload
from fedjax_ssl.federated.uploads import UploadTransform, identity
from tests import toy
from tests.contrib.privacy.promises import keep_promises
from tests.methods import cases

KEY = jax.random.key(5)
FIXED = Gaussian(clip=0.05)
ADAPTIVE = Gaussian(clip=0.05, quantile=0.5, count_noise=1.0)


def sums_of(change: Any, weight: float, averages: Any = ()) -> federated.Total:
    made = toy.total({"model": jnp.asarray(weight)}, {"model": change})
    return made._replace(weight=jnp.asarray(weight), averages=averages)


def test_updates_are_clipped_and_divided_by_the_expected_cohort(float64) -> None:
    updates = jnp.array([[3.0, 4.0], [0.3, -0.4], [-0.6, 0.8]])
    short = jnp.stack([clipped({"model": one}, 1.0)[0]["model"] for one in updates])
    np.testing.assert_allclose(short, [[0.6, 0.8], [0.3, -0.4], [-0.6, 0.8]], atol=1e-15)
    transform = private_sum(Gaussian(), noise=0.0, expected=4)
    state = transform.init({})
    after, _ = transform.at_server(KEY, sums_of(short.sum(0), 3.0), None, state)
    mean, _ = federated.fedavg().apply((), {"model": jnp.zeros(2)}, after, None)
    np.testing.assert_allclose(mean["model"], [0.075, 0.3], atol=1e-15)
    assert after.weight == 4


def test_groups_of_parameters_are_clipped_jointly(float64) -> None:
    update = {"one": jnp.array([0.6, 0.8]), "two": jnp.array([2.0, 0.0, 1.0])}
    short, norm = clipped(update, 1.0)
    np.testing.assert_allclose(norm, 2.4494897428, atol=1e-10)
    np.testing.assert_allclose(short["one"], [0.2449489743, 0.3265986324], atol=1e-10)
    np.testing.assert_allclose(short["two"], [0.8164965809, 0, 0.4082482905], atol=1e-10)


def test_an_update_without_a_norm_is_nothing() -> None:
    short, norm = clipped({"model": jnp.full(2, 1e30)}, 1.0)
    assert np.isinf(norm) and not short["model"].any()
    short, norm = clipped({"model": jnp.zeros(2)}, 1.0)
    assert norm == 0 and not short["model"].any()


def test_noise_of_the_sum_makes_room_for_that_of_the_count() -> None:
    assert Gaussian(quantile=0.5).deviation_of_count(100) == 5
    assert noise_beside_a_count(1.0, 5.0) == pytest.approx(1.0050378153, abs=1e-10)
    assert noise_beside_a_count(0.5, 5.0) == pytest.approx(0.5006261743, abs=1e-10)


def test_the_clip_norm_follows_the_share_of_short_updates(float64) -> None:
    norm = jnp.asarray(0.1)
    path = []
    for share in (0, 0, 0.25, 0.5, 1):
        norm = moved(norm, jnp.asarray(float(share)), Gaussian(quantile=0.5))
        path.append(float(norm))
    expected = [0.1105170918, 0.1221402758, 0.1284025417, 0.1284025417, 0.1161834243]
    np.testing.assert_allclose(path, expected, atol=1e-10)
    # Bits 0, 1, 1 of three clients, less a half each, where four were expected.
    settings = Gaussian(clip=1.0, quantile=0.5, count_noise=1e-12)
    transform = private_sum(settings, noise=1e-12, expected=4)
    count = {"within_clip": jnp.asarray(0.5)}
    _, after = transform.at_server(KEY, sums_of(jnp.zeros(2), 3.0, count), None, transform.init({}))
    np.testing.assert_allclose(after.norm, np.exp(-0.2 * (0.625 - 0.5)), atol=1e-10)


def test_noise_has_its_deviation_over_a_thousand_keys() -> None:
    """1,000 keys x 64 numbers: the standard deviation is known to 1/sqrt(2 * 64,000) = 0.3 %."""
    adaptive = Gaussian(clip=0.5, quantile=0.5, count_noise=4.0)
    transform = private_sum(adaptive, noise=2.0, expected=8)
    state = Clip(jnp.asarray(0.5))

    def means(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        sums = sums_of(jnp.zeros(64), 0.0, {"within_clip": jnp.zeros(())})
        after, next_state = transform.at_server(key, sums, None, state)
        return after.update["model"] / after.weight, jnp.log(next_state.norm / 0.5)

    noise, log_norms = jax.jit(jax.vmap(means))(jax.random.split(KEY, 1000))
    deviation = noise_beside_a_count(2.0, 4.0) * 0.5 / 8
    assert np.std(noise) == pytest.approx(deviation, rel=0.012)
    assert abs(np.mean(noise)) < 4 * deviation / np.sqrt(64_000)
    assert np.std(log_norms) == pytest.approx(0.2 * 4.0 / 8, rel=0.09)


@pytest.mark.parametrize("part", ["terms", "averages", "reported", "statistics", "optimizer"])
def test_an_upload_that_holds_more_is_refused_when_a_round_is_traced(part: str) -> None:
    """However it came there: the second look, behind the one at the recipe."""
    transform = private_sum(FIXED, 1.0, 4)
    nothing: Any = {part: {} for part in Upload._fields}
    upload = Upload(**{**nothing, "update": {"model": jnp.ones(4)}, "weight": jnp.ones(())})
    transform.at_client(KEY, upload, (), transform.init({}))
    with pytest.raises(ValueError, match=f"but it also holds {part}"):
        more = upload._replace(**{part: {"more": jnp.ones(2)}})
        transform.at_client(KEY, more, (), transform.init({}))


def test_every_client_is_drawn_with_one_probability_into_its_slots() -> None:
    draw = jax.jit(
        jax.vmap(lambda key, n: poisson(0.3)(key, n, n, 6, "only"), in_axes=(0, None)),
    )
    cohorts = draw(jax.random.split(KEY, 4000), jnp.zeros(10, jnp.int32))
    sizes = np.asarray(cohorts.valid.sum(1))
    # Binomial(10, 0.3), what is above 6 cut: nobody is left out for its labels or examples.
    assert np.mean(sizes == 0) == pytest.approx(0.7**10, abs=0.01)
    assert sizes.max() == 6 and np.mean(sizes == 6) == pytest.approx(0.0473, abs=0.014)
    drawn = np.asarray(cohorts.ids)[np.asarray(cohorts.valid)]
    counts = np.bincount(drawn, minlength=10) / 4000
    np.testing.assert_allclose(counts, sizes.mean() / 10, atol=0.03)
    assert (np.diff(cohorts.ids, axis=1)[np.asarray(cohorts.valid)[:, 1:]] > 0).all()
    everybody = poisson(1.0)(KEY, jnp.zeros(10), jnp.zeros(10), 10, "any")
    assert everybody.valid.all()


def private(recipe, settings: Gaussian = FIXED, noise: Any = 1.0, clients: int = 6):
    return settings.private(recipe, noise, Sampled(clients, clients, clients))


def fedavg(data, settings: Gaussian = FIXED, noise: float = 1.0, **changes: Any):
    setup = cases.setup("fedavg", data)._replace(**changes)
    recipe = methods.recipe("fedavg", setup)
    return build(private(recipe, settings, noise, data.num_clients))


@pytest.fixture(scope="module")
def data():
    return toy.federation()


@pytest.fixture(scope="module")
def trained(data):
    return toy.train(fedavg(data, ADAPTIVE), KEY, data, 2)


def test_without_noise_and_bound_it_is_uniform_federated_averaging(data) -> None:
    bound = Gaussian(clip=1e9)
    private = fedavg(data, bound, noise=0.0)
    usual = build(methods.recipe("fedavg", cases.setup("fedavg", data)))
    states = [toy.train(method, KEY, data, 1)[0] for method in (private, usual)]
    there = int(np.sum(np.asarray(data.num_labelled) > 0)) / data.num_clients
    start = usual.init(KEY, data).params
    one, two = (jax.tree.map(jnp.subtract, state.params, start) for state in states)
    # The denominator is that of all clients, of which some have nothing to train on.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, there * b, atol=1e-6), one, two)


@pytest.mark.parametrize(
    "how",
    [
        {"placement": "vmap"},
        pytest.param({"placement": "chunked", "chunk_size": 2}, marks=pytest.mark.thorough),
        pytest.param({"placement": "lanes", "chunk_size": 2}, marks=pytest.mark.thorough),
        pytest.param({"devices": 2}, marks=pytest.mark.thorough),
    ],
    ids=lambda how: how.get("placement", "devices"),
)
def test_placement_and_devices_change_no_bit(how: dict[str, Any], data, trained) -> None:
    """Uploads, their noisy sum and the clip norm that follows it, of a small network on a CPU."""
    if "devices" in how:
        how = {"mesh": Mesh(np.array(jax.devices()[:2]), ("clients",))}
    method = toy.executed(fedavg(data, ADAPTIVE), **how)
    state, _ = toy.train(method, KEY, data, 2)
    chex.assert_trees_all_equal(state.params, trained[0].params)
    chex.assert_trees_all_equal(state.uploads, trained[0].uploads)


def test_a_client_more_moves_the_sum_by_the_clip_norm_at_most(data) -> None:
    """Nothing but the clipped update leaves a client: with the same noise, models with one client
    and without it differ by S/n, whatever its examples are.
    """
    method = fedavg(data)
    wild = toy.changed(data, inputs=100.0 * np.asarray(data.inputs))
    for one in (data, wild):
        (with_it, _), (without, _) = (
            toy.train(method, KEY, given, 1) for given in (one, toy.without(one, 0))
        )
        assert without.terms == with_it.terms
        difference = jax.tree.map(jnp.subtract, with_it.params, without.params)
        distance = float(jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(difference))))
        assert 0 < distance <= 0.05 / data.num_clients * 1.001


OUTSIDE = {"xclp": "codes", "mixed": "codes"}  # said in `Recipe.sends`


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "fedavg" else pytest.mark.thorough)
        for name in sorted({*methods.available()} - {"compose", "alone", *OUTSIDE})
    ],
)
def test_nothing_leaves_a_client_but_its_upload(name: str) -> None:
    """Where every upload is lost, the server ends with the same bits whatever clients have."""

    def lost(key: Any, upload: Any, trained: Any, state: Any) -> Any:
        return upload._replace(arrived=jnp.zeros((), bool))

    transform = UploadTransform("lost", at_client=lost)
    like = toy.weak_federation("labels")
    kind = cases.build(name, like).recipe.needs.kinds[0]
    one = toy.weak_federation(kind)
    made = methods.recipe(name, cases.setup(name, one), **cases.of(name).settings)
    method = build(made._replace(setup=made.setup._replace(uploads=(transform,))))
    inputs = np.array(one.inputs)
    inputs[np.unique(one.index)] *= -3.0
    ends = [
        toy.train(method, KEY, data, 3)[0]._replace(clients=())
        for data in (one, toy.changed(one, inputs=inputs))
    ]
    if name == "fedsem":  # clients make its labels and keep them; the simulation has them here
        ends = [end._replace(terms={}) for end in ends]
    chex.assert_trees_all_equal(*ends)


def test_a_round_without_anybody_has_noise(data) -> None:
    nobody = toy.without(data, *range(data.num_clients))
    method = fedavg(data)
    before = method.init(KEY, nobody)
    after, infos = toy.train(method, KEY, nobody, 1)
    assert infos[0]["local_steps"] == 0
    moves = jax.tree.map(jnp.subtract, after.params, before.params)
    assert all(np.any(np.asarray(leaf)) for leaf in jax.tree.leaves(moves))


def test_what_sees_the_sum_before_its_noise_is_refused(data) -> None:
    def at_server(key, summed, context, state):
        return summed, state

    seeing = UploadTransform("seeing", at_server=at_server)
    with pytest.raises(ValueError, match="'seeing' sees the sum before it has noise"):
        fedavg(data, uploads=(seeing,))
    fedavg(data, uploads=(identity(),))


def test_batch_statistics_and_variates_are_refused(data) -> None:
    for changes, says in (
        ({"federated_optimizer": federated.scaffold()}, "federated optimizer .* reports"),
        ({"average_optimizer": True}, "states of optimizers"),
        ({"weighting": "examples"}, "weighting=uniform"),
    ):
        with pytest.raises(ValueError, match=says):
            fedavg(data, **changes)


def test_slots_are_beyond_what_is_drawn() -> None:
    assert Gaussian().sampled(100, 10).slots == 25
    assert Gaussian().sampled(20, 20) == (20, 20, 20)
    assert Gaussian(accountant="rdp").sampled(1000, 10).slots == 1000
    with pytest.raises(ValueError, match=r"slots is 5; .* must be 10\.\.100"):
        Gaussian(slots=5).sampled(100, 10)
    with pytest.raises(ValueError, match="no account of cohorts that are cut"):
        Gaussian(slots=20, accountant="rdp").sampled(100, 10)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fedavg", "semifl", "fixmatch"])
def test_private_methods_keep_the_promises(name: str) -> None:
    """A plain method, one with a server and one that learns without labels; resume among them."""
    kind = "server" if name == "semifl" else "labels"
    settings: dict[str, Any] = {"semifl": {"threshold": 0.5}}.get(name, {})
    federation = toy.weak_federation(kind, noise=1.0)

    def made(data, **changes) -> federated.Method:
        run = toy.setup(data, augment=toy.jitter, **changes)
        recipe = methods.recipe(name, run, **settings)
        return build(private(recipe, ADAPTIVE, 0.5, federation.num_clients))

    keep_promises(made)
