import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import federated
from fedjax_ssl.federated.optimizers import FederatedOptimizer, Grouped
from fedjax_ssl.methods.parts.two_stages import labelled_stage
from tests import toy

ANCHOR = {"model": np.array([1.0, -2.0, 0.5]), "other": np.array([0.25])}
CLIENTS = [
    {"model": np.array([1.5, -2.5, 0.0]), "other": np.array([0.5])},
    {"model": np.array([0.0, -1.0, 1.0]), "other": np.array([-1.0])},
    {"model": np.array([1.0, 3.0, 0.5]), "other": np.array([0.25])},
]
WEIGHTS = [1.0, 3.0, 0.0]  # the third trained nothing, or was dropped


def flat(tree: dict[str, np.ndarray]) -> Grouped:
    return {name: jnp.asarray(value, jnp.result_type(float)) for name, value in tree.items()}


def step(optimizer: FederatedOptimizer, state, anchor: Grouped, weights: list[float]):
    """One server step from the clients' results."""
    kept = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(CLIENTS)), optimizer.keep(anchor))
    round = toy.context(len(CLIENTS))
    clients = [
        toy.local(
            anchor=anchor,
            params=flat(client),
            weights={group: jnp.asarray(weight, jnp.result_type(float)) for group in anchor},
            num_steps=jnp.asarray(2, jnp.int32),
            learning_rate=jnp.asarray(0.1),
            sent_by_optimizer=jax.tree.map(
                lambda leaf, i=i: leaf[i], optimizer.send(state, kept, round)
            ),
            kept=jax.tree.map(lambda leaf, i=i: leaf[i], kept),
        )
        for i, (client, weight) in enumerate(zip(CLIENTS, weights, strict=True))
    ]
    return optimizer.apply(state, anchor, toy.added_up(optimizer, *clients)[0], round)


def test_fedavg_is_the_weighted_mean_of_the_models(float64) -> None:
    optimizer = federated.fedavg()
    new, _ = step(optimizer, optimizer.init(flat(ANCHOR)), flat(ANCHOR), WEIGHTS)
    for name in ANCHOR:
        mean = (1.0 * CLIENTS[0][name] + 3.0 * CLIENTS[1][name]) / 4.0
        np.testing.assert_allclose(new[name], mean, rtol=1e-14)


@pytest.mark.parametrize(
    "optimizer",
    [
        federated.fedavg(),
        federated.fedprox(0.5),
        federated.scaffold(),
        federated.fedopt(optax.sgd(1.0, 0.5)),
        federated.fedopt(optax.adam(0.1)),
        federated.fedopt(optax.yogi(0.1)),
        federated.fedopt(federated.adaptive("yogi", 0.1, 0.9, 0.99, 1e-3)),
    ],
)
def test_a_round_in_which_nobody_trained_changes_nothing(optimizer: FederatedOptimizer) -> None:
    anchor = flat(ANCHOR)
    _, state = step(optimizer, optimizer.init(anchor), anchor, WEIGHTS)
    new, after = step(optimizer, state, anchor, [0.0, 0.0, 0.0])
    for name in ANCHOR:
        np.testing.assert_array_equal(new[name], anchor[name])
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), after, state)))


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_fedopt_steps_along_the_mean_change(float64, name: str) -> None:
    """Reddi et al., ICLR 2021, Algorithm 2, with optax' bias correction, over two rounds."""
    rate = 0.1
    b1 = 0.9
    b2 = 0.99
    eps = 1e-3
    server = {"fedadam": optax.adam, "fedyogi": optax.yogi}[name](rate, b1=b1, b2=b2, eps=eps)
    optimizer = federated.fedopt(server)
    weights = flat(ANCHOR)
    state = None
    state = optimizer.init(weights)
    start = 0.0 if name == "fedadam" else 1e-6  # optax.yogi starts its accumulators there
    by_hand = {key: value.copy() for key, value in ANCHOR.items()}
    first = {key: np.full_like(value, start) for key, value in ANCHOR.items()}
    second = {key: np.full_like(value, start) for key, value in ANCHOR.items()}
    for number in (1, 2):
        weights, state = step(optimizer, state, weights, WEIGHTS)
        for key in ANCHOR:
            gradient = by_hand[key] - (CLIENTS[0][key] + 3.0 * CLIENTS[1][key]) / 4.0
            first[key] = b1 * first[key] + (1 - b1) * gradient
            if name == "fedadam":
                second[key] = b2 * second[key] + (1 - b2) * gradient**2
            else:
                second[key] -= (1 - b2) * np.sign(second[key] - gradient**2) * gradient**2
            corrected = first[key] / (1 - b1**number), second[key] / (1 - b2**number)
            by_hand[key] = by_hand[key] - rate * corrected[0] / (np.sqrt(corrected[1]) + eps)
            np.testing.assert_allclose(weights[key], by_hand[key], rtol=1e-7)


def server_step(optimizer: FederatedOptimizer, state, weights: list[float], *clients: list[float]):
    """From the global weights and the models of equally weighted clients."""
    anchor = {"model": jnp.asarray(weights)}
    change = sum(jnp.asarray(client) - anchor["model"] for client in clients)
    summed = toy.total({"model": jnp.asarray(float(len(clients)))}, {"model": change})
    new, state = optimizer.apply(state, anchor, summed, toy.context(3))
    return np.asarray(new["model"]), state


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("fedadam", (0.0316227716, 0.0429410067)),  # v = 0.004, 0.004996
        ("fedyogi", (0.0316227716, 0.0429364785)),  # v = 0.004, 0.005
        ("fedadagrad", (0.001, 0.00135777087)),  # v = 4, 5
    ],
)
def test_adaptive_servers_without_bias_correction_are_flambys(
    float64, name: str, moved: tuple[float, float]
) -> None:
    """Changes of 2 and -1: m = 0.2, 0.08; steps of 0.01 m / (sqrt(v) + 1e-8), worked by hand."""
    given = {"server_learning_rate": 0.01, "beta1": 0.9, "tau": 1e-8}
    given |= {} if name == "fedadagrad" else {"beta2": 0.999, "bias_correction": False}
    optimizer = federated.FEDERATED_OPTIMIZERS.build(name, **given)
    state = optimizer.init({"model": jnp.zeros(1)})
    first, state = server_step(optimizer, state, [0.0], [1.0], [3.0])
    second, _ = server_step(optimizer, state, first.tolist(), [first[0]], [first[0] - 2.0])
    np.testing.assert_allclose([first[0], second[0]], moved, rtol=1e-7)


@pytest.fixture(scope="module")
def plain_round():
    data = toy.federation()
    return data, toy.train(with_optimizer(data, federated.fedavg()), jax.random.key(0), data, 2)[0]


def with_optimizer(data, optimizer: FederatedOptimizer) -> federated.Method:
    setup = toy.setup(data, federated_optimizer=optimizer)
    return federated.build(federated.Recipe(setup, (labelled_stage(setup, None),)))


@pytest.mark.thorough
def test_fedprox_without_strength_is_fedavg_bit_for_bit(plain_round) -> None:
    data, expected = plain_round
    method = with_optimizer(data, federated.fedprox(0.0))
    state, _ = toy.train(method, jax.random.key(0), data, 2)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_step_of_fedprox_of_the_worked_example() -> None:
    """Gradient (.1, .2) at (1, -1), pulled towards (.8, -.5) with mu = 0.01, rate 0.1."""
    weights, anchor, slope = (
        {"model": np.array(x)} for x in ((1.0, -1.0), (0.8, -0.5), (0.1, 0.2))
    )
    gradient = federated.fedprox(0.01).correct(slope, weights, anchor, ())["model"]
    np.testing.assert_allclose(weights["model"] - 0.1 * gradient, [0.9898, -1.0195], rtol=1e-12)
