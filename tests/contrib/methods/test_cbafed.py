"""CBAFed: numbers of the specification's checks, limits and edge cases."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.contrib.methods.cbafed import (
    RESIDUAL,
    CBAFed,
    Thresholds,
    choose_by_class,
    class_thresholds,
    with_global_residual,
    with_local_residual,
)
from fedjax_ssl.federated import (
    AtClient,
    Client,
    Recipe,
    Stage,
    Term,
    Training,
    View,
    build,
    labelled_epochs,
)
from fedjax_ssl.federated.sampler import batches_per_epoch
from fedjax_ssl.methods.parts.confident_pseudo_labels import (
    CONFIDENT,
    ConfidentLabels,
    above,
    confident_epochs,
    confident_term,
    fix_term,
    labelled_view,
)
from fedjax_ssl.models import Model, Outputs
from tests import toy


def key() -> jax.Array:
    return jax.random.key(3)


SVHN = np.array([15, 292, 986, 116, 63, 1285, 1352, 1438, 807, 267])
KEPT = np.array([100, 900, 1500, 300, 200, 1800, 1700, 1600, 1200, 700])


@partial(jax.jit, static_argnums=(1,))
def thresholds_of(counts: jax.Array, largest: float) -> Thresholds:
    return class_thresholds(counts, CBAFed(largest_threshold=largest))


LOWEST_FIRST = [
    *(0.7556364060, 0.7974729866, 0.9, 0.7708908993, 0.7628860662),
    *(0.9, 0.9, 0.9, 0.8752557989, 0.7936971219),
]
LOWEST_LATER = [
    *(0.7739033559, 0.8387009012, 0.9, 0.7920129763, 0.7828077540),
    *(0.9, 0.9, 0.9, 0.8877352553, 0.8251638096),
]


@pytest.mark.parametrize(
    ("counts", "expected"), [(SVHN, LOWEST_FIRST), (SVHN + KEPT, LOWEST_LATER)]
)
def test_thresholds_of_the_stored_split(float64, counts, expected) -> None:
    """Checks 1 and 2."""
    lowest, tail = thresholds_of(counts.astype(float), 0.9)
    np.testing.assert_allclose(lowest, expected, atol=1e-10)
    assert np.flatnonzero(tail).tolist() == [0, 3, 4]


choose = jax.jit(choose_by_class, static_argnums=2)


def test_selection(float64) -> None:
    """Check 3, and the same without second classes."""
    labelled = np.array([40.0, 50.0, 2.0, 8.0])
    thresholds = thresholds_of(labelled, 0.95)
    np.testing.assert_allclose(
        thresholds.lowest, [0.9056813910, 0.9456813910, 0.7536813910, 0.7776813910], atol=1e-10
    )
    np.testing.assert_array_equal(thresholds.tail, [False, False, True, False])
    rows = [
        [95, 2, 2, 1],
        [80, 5, 10, 5],
        [5, 85, 4, 6],
        [3, 2, 90, 5],
        [30, 25, 40, 5],
        [96, 1, 2, 1],
    ]
    probabilities = np.array(rows) / 100
    labels, kept = choose(probabilities, thresholds, True)
    np.testing.assert_array_equal(np.where(kept, labels, -1), [0, 2, -1, 2, -1, 0])
    counts = np.bincount(np.asarray(labels)[np.asarray(kept)], minlength=4).astype(float)
    np.testing.assert_array_equal(counts, [2, 0, 2, 0])
    following = thresholds_of(labelled + counts, 0.95).lowest
    np.testing.assert_allclose(
        following, [0.9116119081, 0.9423811389, 0.7654580620, 0.7808426773], atol=1e-10
    )
    first, kept = choose(probabilities, thresholds, False)
    np.testing.assert_array_equal(np.where(kept, first, -1), [0, -1, -1, 2, -1, 0])
    at_the_threshold = np.array([[0.0, 0.0, float(thresholds.lowest[2]), 0.0]])
    assert not choose(at_the_threshold, thresholds, False)[1][0], "it has to be above"


def test_classes_without_any_example(float64) -> None:
    """Edge case: nothing is known of any class, and nothing is divided by 0."""
    lowest, tail = thresholds_of(np.zeros(3, np.float32), 0.95)
    np.testing.assert_allclose(lowest, 0.84)
    assert bool(jnp.all(tail))


def one_number() -> Model:
    """A network that is a number, and a running statistic that counts its steps."""

    def apply(params, state, inputs, *, train, key=None, mask=None):
        logits = inputs[:, : toy.NUM_CLASSES] + params["w"]
        return Outputs(logits, inputs, None), {"steps": state["steps"] + 1.0} if train else state

    return Model(lambda key: ({"w": jnp.zeros(())}, {"steps": jnp.zeros(())}), apply)


def up(stream: str, client: AtClient, slope: float = 1.0) -> Term:
    """Adds `slope` to the number in every step of rate 1."""
    view = View(stream, stream, lambda key, streams: streams[stream].inputs)
    return Term("up", (view,), lambda step: -slope * step.params["w"], client=client)


@pytest.mark.parametrize(
    ("epochs", "number", "steps"),
    [
        (11, 3.0, 6.0),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in ((5, 5, 10), (6, 2, 4), (10, 6, 12))
        ),
    ],
)
def test_local_residual(float64, epochs: int, number: float, steps: float) -> None:
    """Check 4: 11 epochs of two steps, each of which adds a half; the running statistic goes the
    same way.
    """
    data = toy.federation(sizes=(7,), labelled=(7,))
    run = toy.setup(data, model=one_number(), learning_rate=1.0)
    term = up("labelled", with_local_residual(4, CBAFed()), 0.5)
    stage = Stage(Training((term,), labelled_epochs(4, epochs, 7, skip_single=True)))
    state, _ = toy.train(build(Recipe(run, (stage,))), key(), data, 1)
    found = float(state.params["model"]["w"]), float(state.model_state["steps"])
    assert found == pytest.approx((number, steps), rel=1e-12)


def test_global_residual(float64) -> None:
    """Check 4: rounds 0 to 10, after one of warm-up in which the model is still 0."""
    data = toy.federation(sizes=(4,), labelled=(4,))
    run = toy.setup(data, model=one_number(), learning_rate=1.0)
    still = Stage(
        Training((up("labelled", AtClient(), 0.0),), toy.in_order("labelled", 4, 1)), rounds=1
    )
    stage = Stage(Training((up("labelled", AtClient()),), toy.in_order("labelled", 4, 1)))
    plain = Recipe(run, (still, stage))
    method = build(with_global_residual(plain, CBAFed()))
    state = jax.jit(method.init)(key(), data)
    one_round = jax.jit(method.round)
    seen = []
    for _ in range(12):
        state, _ = one_round(key(), state, data)
        seen.append(float(state.params["model"]["w"]))
    np.testing.assert_allclose(seen[1:], [1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 5.5], rtol=1e-12)
    assert float(state.terms[RESIDUAL].params["model"]["w"]) == 5.5
    assert float(state.model_state["steps"]) == pytest.approx((((1 + 7) / 2 + 5) + 4) / 2), (
        "statistics as the weights"
    )
    assert with_global_residual(plain, CBAFed(global_residual=0.0)) is plain


def test_a_last_batch_of_one_example_is_left_out() -> None:
    """Edge case: unless it is all there is."""
    for number, batches in ((0, 0), (1, 1), (2, 1), (4, 1), (5, 1), (6, 2), (8, 2), (9, 2)):
        assert int(batches_per_epoch(jnp.asarray(number), 4, skip_single=True)) == batches
    place = jnp.arange(7, dtype=jnp.int32)
    labels = ConfidentLabels(place * 0, place != 1, jnp.ones(7))
    nothing = jnp.zeros((), jnp.int32)
    client = Client(nothing, place, place * 0 - 1, nothing, nothing + 6, {CONFIDENT: labels}, ())
    sampler = confident_epochs(4, 1, with_partners=False, skip_single=True)
    schedule = jax.jit(sampler.schedule)(key(), client, toy.NOW)
    assert int(schedule.num_steps) == 1 and set(schedule.masks) == {"fix"}
    assert int(schedule.masks["fix"].sum()) == 4


@pytest.mark.thorough
def test_clients_train_on_the_very_views_that_they_labelled() -> None:
    """The weak view draws noise; in every step of two epochs, the network sees what it saw when
    it labelled.
    """
    data = toy.federation(sizes=(6, 5), labelled=(0, 0))
    run = toy.setup(data, model=toy.linear_model(), augment=toy.jitter, learning_rate=0.0)

    labels = confident_term(
        run, above(0.0), extra=lambda context, probabilities, confident: probabilities
    )
    term = fix_term(run, 1.0, labelled_view(run))

    def difference(step):
        batch = step.streams["fix"]
        then = step.client.sent[CONFIDENT].extra[batch.position]
        now = jax.nn.softmax(step.outputs["fix/labelled"].logits)
        return jnp.sum(jnp.where(batch.mask[:, None], jnp.abs(now - then), 0.0))

    stage = Stage(
        Training(
            (labels, term._replace(loss=difference)), confident_epochs(4, 2, with_partners=False)
        )
    )
    _, infos = toy.train(build(Recipe(run, (stage,))), key(), data, 1)
    assert infos[0]["loss"] < 1e-5 and infos[0]["examples"] == 2 * 11


@pytest.mark.thorough
def test_nobody_keeps_anything_and_the_labelled_clients_are_federated_averaging() -> None:
    """Limit: thresholds of 1 and no residuals; clients weigh by their labels, a batch each."""
    data = toy.federation(labelled=(4, 3, 0, 1, 4, 2))
    run = toy.setup(data, model=toy.linear_model(), weighting="labelled")
    never = {"base_threshold": 1.0, "largest_threshold": 1.0, "tail_second": False}
    method = methods.build(
        "cbafed", run, warmup_rounds=0, local_residual=0.0, global_residual=0.0, **never
    )
    mine, infos = toy.train(method, key(), data, 2)
    plain, expected = toy.train(methods.build("fedavg", run), key(), data, 2)
    chex.assert_trees_all_close(mine.params, plain.params, rtol=1e-5, atol=1e-6)
    assert [info["local_steps"] for info in infos] == [info["local_steps"] for info in expected]
    assert infos[0]["pseudo_label_coverage"] == 0 and not np.any(mine.terms[CONFIDENT])
    one_client_without_labels = infos[0]["bytes_up"] - infos[0]["clients"] * 4 * 15
    assert one_client_without_labels == 4 * toy.NUM_CLASSES


def test_a_single_class_is_refused() -> None:
    with pytest.raises(ValueError, match="needs two classes"):
        methods.build("cbafed", toy.setup(toy.federation())._replace(num_classes=1))
