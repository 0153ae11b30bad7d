"""FedMatch against its worked examples: section 13 of its specification, numbers from NumPy in
float64.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.config import ConfigError
from fedjax_ssl.federated import ServerState, Setup
from fedjax_ssl.methods.fedmatch import FedMatch, consistency, helpers_due, regularizer
from fedjax_ssl.models import Model, Outputs
from fedjax_ssl.objectives import fixmatch_loss
from fedjax_ssl.runs.advice import check_labels
from tests import toy

KEY = jax.random.key(0)
fedmatch = functools.partial(methods.build, "fedmatch")
SIGMA = np.array([[0.5, -0.5, 0.0], [0.2, 0.1, -0.3]])
HELPERS = np.array([[[0, 0.1, 0], [0, 0.1, 0]], [[0.3, 0, -0.1], [0, 0, 0.1]]])
PAPER = {
    "supervised_weight": 10.0,
    "agreement_weight": 0.01,
    "kl_weight": 0.01,
    "l2_weight": 10.0,
    "l1_weight": 1e-4,
}
NOTHING = dict.fromkeys(PAPER, 0.0)


# The losses on a batch.

PLAIN = np.array([[0.90, 0.05, 0.05], [0.80, 0.15, 0.05], [0.50, 0.30, 0.20], [0.10, 0.12, 0.78]])
STRONG = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.4, 0.4, 0.2], [0.2, 0.2, 0.6]])
OTHERS = np.array(
    [
        [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.3, 0.1, 0.6]],
        [[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.7, 0.1], [0.5, 0.25, 0.25]],
    ]
)


@pytest.fixture(scope="module")
def losses():
    def of(plain, threshold, there, mask, clip_eps):
        logits = jnp.log(plain), jnp.log(jnp.asarray(STRONG))
        found = consistency(*logits, jnp.asarray(OTHERS), there, mask, threshold, clip_eps)
        return found, fixmatch_loss(*logits, mask, threshold)

    compiled = jax.jit(of)

    def call(threshold, there=(1, 1), mask=(1, 1, 1, 1), plain=PLAIN, clip_eps=0.0):
        with jax.enable_x64(True):
            return compiled(
                jnp.asarray(plain), threshold, np.array(there, bool), np.array(mask, bool), clip_eps
            )

    return call


def test_inter_client_consistency(losses) -> None:
    """Check 3: sample 2 is overruled by the helpers; the mean is over confident samples, not
    over the batch.
    """
    found, _ = losses(0.75)
    assert found.labels.tolist() == [0, 1, -1, 2]
    np.testing.assert_allclose(
        [found.cross_entropy, found.divergence], [0.4594421, 0.5560953], atol=5e-8
    )
    assert float(found.cross_entropy + found.divergence) == pytest.approx(1.0155373, abs=1e-7)
    found, _ = losses(0.85)
    assert float(found.cross_entropy + found.divergence) == pytest.approx(0.5606582, abs=1e-7)
    assert losses(0.5)[0].labels.tolist() == [0, 1, 1, 2]


def test_without_helpers_it_is_fixmatch_but_for_the_mean(losses) -> None:
    """Checks 3 and 18b: 0.6904911, and FixMatch's batch mean 0.5178684 is 3 / 4 of it."""
    found, fixmatch = losses(0.75, there=(0, 0))
    assert (
        float(found.cross_entropy) == pytest.approx(0.6904911, abs=1e-7)
        and float(found.divergence) == 0
    )
    assert float(fixmatch) == pytest.approx(0.5178684, abs=1e-7)
    assert float(fixmatch) == pytest.approx(0.75 * float(found.cross_entropy), rel=1e-12)


def test_nobody_confident_and_helpers_like_oneself(losses) -> None:
    """Check 18c: no divergence and one's own labels; no confident row is exactly 0, as are rows
    that are not there.
    """
    found, _ = losses(1.1)
    assert (
        float(found.cross_entropy) == float(found.divergence) == 0
        and found.labels.tolist() == [-1] * 4
    )
    found, _ = losses(0.75, mask=(1, 0, 0, 0))
    assert found.labels.tolist() == [0, -1, -1, -1]
    assert float(found.cross_entropy) == pytest.approx(-np.log(0.7))
    found, _ = losses(0.0, plain=OTHERS[0], there=(1, 0))
    assert float(found.divergence) == pytest.approx(0, abs=1e-15)
    assert found.labels.tolist() == OTHERS[0].argmax(1).tolist()


def test_clipped_probabilities_as_in_the_code(losses) -> None:
    """No cross-entropy above -log 1e-7 = 16.1181; where nothing is that small, nothing changes."""
    sharp = np.array([[1 - 2e-9, 1e-9, 1e-9]] * 4)
    kl = [
        float(losses(0.0, there=(1, 0), plain=sharp, mask=(0, 1, 0, 0), clip_eps=e)[0].divergence)
        for e in (0, 1e-7)
    ]
    assert kl[0] - kl[1] == pytest.approx(0.8 * np.log(100), rel=1e-6)
    assert losses(0.75, clip_eps=1e-7)[0].divergence == pytest.approx(
        float(losses(0.75)[0].divergence), rel=1e-12
    )


def test_regularizers_are_sums(float64) -> None:
    """Checks 4 and 8: slopes at psi, sign(0) = 0, and soft-thresholding is where the slope
    vanishes.
    """
    sigma = jnp.array([0.5, -0.2, 0.1, 0.0])
    psi = jnp.array([0.1, -0.05, 0.0, 0.02])
    of = jax.jit(
        jax.value_and_grad(
            lambda psi, sigma, l2, l1: regularizer({"sigma": sigma, "psi": psi}, l2, l1)
        )
    )
    assert float(of(psi, sigma, 1.0, 0.0)[0]) == pytest.approx(0.1929, rel=1e-12)
    assert float(of(psi, sigma, 0.0, 1.0)[0]) == pytest.approx(0.17, rel=1e-12)
    value, slope = of(psi, sigma, 10.0, 1e-4)
    assert float(value) == pytest.approx(1.929017, rel=1e-12)
    np.testing.assert_allclose(slope, [-7.9999, 2.9999, -2.0, 0.4001], rtol=1e-12)
    sigma = jnp.array([1e-5, 3e-6, -2e-5, 0.0])
    psi = jnp.array([5e-6, 0.0, -1.5e-5, 0.0])
    slope = np.asarray(of(psi, sigma, 10.0, 1e-4)[1])
    np.testing.assert_allclose(slope[[0, 2]], 0.0, atol=1e-18)
    assert abs(slope[1]) < 1e-4, "within the kink of the absolute value"


# One client, one step, through the whole engine; every number is an argument of one compiled
# program.


def linear(start: np.ndarray) -> Model:
    def apply(params, state, inputs, *, train, key=None, mask=None):
        return Outputs(inputs @ params["w"], inputs, None), state

    return Model(lambda key: ({"w": jnp.asarray(start)}, {}), apply)


def one_client() -> object:
    """Client 0 has x = (1, 2) of class 0 and u = (3, 2); clients 1 and 2 have nothing, and
    helped long ago.
    """
    data = toy.federation(sizes=(2, 0, 0), labelled=(1, 0, 0), num_test=3)
    inputs = np.array(data.inputs)
    inputs[:2, :2] = [[1, 2], [3, 2]]
    labels = np.array(data.labels)
    labels[0] = 0
    data = toy.changed(data, labels=labels, observed=np.where(np.arange(5) == 0, 0, -1))
    return toy.dataclasses.replace(data, inputs=jnp.asarray(inputs[:, :2]))


def run_of(data, **changes) -> Setup:
    def strong(key, inputs):
        return jnp.broadcast_to(jnp.array([2.0, -1.0]), inputs.shape)

    given = {
        "batch_size": 1,
        "local_epochs": 1,
        "learning_rate": 0.01,
        "strong_augment": strong,
        **changes,
    }
    return toy.setup(data, model=linear(SIGMA), **given)


@pytest.fixture(scope="module")
def one_step():
    """(numbers, sigma, psi) -> (new sigma, new psi, loss of the step)."""
    with jax.enable_x64(True):
        data = one_client()

        def build(numbers):
            return fedmatch(run_of(data), helper_interval=1, lr_schedule="none", **numbers)

        start = jax.jit(build(NOTHING).init)(KEY, data)
        step = jax.jit(lambda numbers, state: build(numbers).round(KEY, state, data))

    def call(sigma=SIGMA, psi=0.2 * SIGMA, threshold=0.75, helpers=True, **numbers):
        with jax.enable_x64(True):
            seen = jnp.array([True, helpers, helpers])
            uploads = {
                "sigma": jnp.zeros((3, 2, 3)),
                "psi": jnp.concatenate([jnp.zeros((1, 2, 3)), HELPERS]),
            }
            store = start.terms["fedmatch"]._replace(
                uploads={g: {"w": w} for g, w in uploads.items()}, seen=seen
            )
            terms = {**start.terms, "fedmatch": store}
            params = {"sigma": {"w": jnp.asarray(sigma)}, "psi": {"w": jnp.asarray(psi)}}
            given = {
                **NOTHING,
                "threshold": threshold,
                "l1_threshold": 0.0,
                "delta_threshold": 0.0,
                **numbers,
            }
            given = {name: jnp.asarray(value) for name, value in given.items()}
            state: ServerState = start._replace(
                params=params, terms=terms, round=jnp.asarray(1, jnp.int32)
            )
            state, info = step(given, state)
            return *(np.asarray(state.params[part]["w"]) for part in ("sigma", "psi")), toy.numbers(
                info
            )

    return call


@pytest.mark.thorough
def test_disjoint_steps(one_step) -> None:
    """Check 5: psi moves at the sigma that already moved; helpers have the sigma that was
    received.
    """
    sigma, psi, info = one_step(**PAPER)
    expected = [[0.52868485, -0.51689654, -0.01178831], [0.25736971, 0.06620692, -0.32357663]]
    np.testing.assert_allclose(sigma, expected, atol=5e-9)
    expected = [[0.18580379, -0.183384, -0.00241978], [0.08342614, 0.02925104, -0.11267818]]
    np.testing.assert_allclose(psi, expected, atol=5e-9)
    assert info["loss"] == pytest.approx(3.3806144 + 4.7710165, abs=1e-7)
    assert info["helpers"] == 2 and info["pseudo_label_coverage"] == 1
    # Every entry moved and both helpers were sent: sigma, psi and the entries where they have
    # weights.
    assert info["c2s"] == 2.0 and info["s2c_helpers"] == pytest.approx((2 + 3) / 6)


@pytest.mark.thorough
def test_psi_follows_sigma(one_step) -> None:
    """Check 7: psi - sigma shrinks by 1 - 2 * 0.001 * 10 a step, here by 1 - 2 * 0.01 * 1."""
    psi = 0.2 * SIGMA
    seen = {}
    for number in range(1, 101):
        _, psi, _ = one_step(psi=psi, l2_weight=1.0)
        seen[number] = psi[0, 0] / SIGMA[0, 0]
    expected = {1: 0.216, 5: 0.276863, 10: 0.346342, 50: 0.708664, 100: 0.893904}
    for number, share in expected.items():
        assert seen[number] == pytest.approx(share, abs=5e-7)


# Schedules.


def test_helper_rounds() -> None:
    """Check 11: 20 of 200 rounds; with 5 of 100 clients a round, 9.2 % of all turns have
    helpers.
    """
    due = np.flatnonzero(helpers_due(FedMatch(), np.arange(200)))
    np.testing.assert_array_equal(due + 1, np.arange(10, 201, 10))
    seen = 1 - 0.95**due
    np.testing.assert_allclose(seen[:2], [0.370, 0.623], atol=5e-4)
    assert seen.sum() / 200 == pytest.approx(0.092, abs=5e-4)


# What is refused.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        *(({"l2_weight": product}, "") for product in (0.0, 0.5, 1.0, 2.0)),
        ({"l2_weight": 1000.0, "decomposition": "none"}, ""),
        (
            {"l2_weight": 10.0},
            "times l2_weight 10 is 0.1, in the paper 0.01: config.method.l2_weight=1 keeps",
        ),
        ({"l2_weight": 0.33}, "times l2_weight 0.33 is 0.0033, in the paper 0.01"),
        ({"l2_weight": 60.0}, "is 0.6, in the paper 0.01; from 0.5 on psi swings around sigma"),
    ],
)
def test_a_rate_that_does_not_fit_l2_weight_is_said(settings: dict, said: str) -> None:
    """The learning rate is 0.01. The paper's product is 0.01; its half and its double are let
    pass.
    """
    check = fedmatch(run_of(one_client()), **settings).recipe.check
    notes = check(one_client())
    assert said in notes[0] if said else notes == []


def test_a_rate_with_which_psi_diverges_is_refused() -> None:
    message = r"l2_weight 100 is 1, in the paper 0.01; from 1 on psi diverges"
    with pytest.raises(ValueError, match=message):
        fedmatch(run_of(one_client()), l2_weight=100.0)


@pytest.mark.parametrize(
    ("rounds", "settings", "said"),
    [
        (10, {}, ()),
        (20, {}, ()),
        (60, {"patience": 30}, ()),
        (60, {"lr_schedule": "none"}, ()),
        (
            *(60, {}),
            (
                *("divided by 3 where 5 looks", "has 60 of them (the paper's have 10)"),
                *("config.method.patience=30", "lr_schedule='none'"),
            ),
        ),
    ],
)
def test_a_schedule_that_may_end_learning_is_said(rounds: int, settings: dict, said) -> None:
    """The paper's clients look 10 times, 200 rounds of 5 of 100 clients, with patience 5."""
    method = fedmatch(run_of(one_client(), rounds=rounds), l2_weight=1.0, **settings)
    notes = " ".join(method.recipe.check(one_client()))
    assert all(part in notes for part in said) and bool(notes) == bool(said)


def test_without_validation_examples_the_learning_rate_cannot_follow_them() -> None:
    data = one_client()
    method = fedmatch(run_of(data))
    state = jax.eval_shape(method.init, KEY, data)
    with pytest.raises(
        ValueError, match=r"there are none; hold some out with config.data.validation_fraction"
    ):
        jax.eval_shape(method.round, KEY, state, data)


def test_labels_at_neither_side_are_refused_before_training() -> None:
    data = toy.without_knowledge(one_client())
    with pytest.raises(ConfigError, match=r"'fedmatch' learns from class labels at clients; with"):
        check_labels("none", "fedmatch", fedmatch(run_of(data)), data)
