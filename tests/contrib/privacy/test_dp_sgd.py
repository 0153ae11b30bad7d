"""DP-SGD at clients: batches, clipped gradients of examples, noise, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.contrib.privacy.dp_sgd import (
    DPSGD,
    Sampled,
    mechanisms,
    poisson_batches,
    with_noisy_gradients,
)
from fedjax_ssl.federated import Now, build
from fedjax_ssl.federated.client_states import all_clients
from fedjax_ssl.federated.contract import LocalStep, Losses, Step, Stream
from fedjax_ssl.methods.around.slow_clients import slow_clients
from fedjax_ssl.models import Outputs
from fedjax_ssl.objectives.cross_entropy import batch_mean
from tests import toy
from tests.contrib.privacy.promises import keep_promises
from tests.methods import cases

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def data():
    return toy.federation()


def private(recipe: federated.Recipe, noise: float = 1.0) -> federated.Recipe:
    return DPSGD(clip=0.5).private(recipe, noise, Sampled(6, 6, 6))


def test_every_example_is_drawn_with_one_probability(data) -> None:
    sampler = poisson_batches(2, local_epochs=400, max_labelled=data.max_labelled)
    now = Now(jnp.zeros((), jnp.int32))
    plan = jax.vmap(lambda client: sampler.schedule(KEY, client, now))(all_clients(data))
    for number, count in enumerate(np.asarray(data.num_labelled)):
        steps = 400 * -(-count // 2)
        assert plan.num_steps[number] == steps
        mask = np.asarray(plan.masks["labelled"])[number, :steps]
        drawn = np.asarray(plan.positions["labelled"])[number, :steps][mask]
        if count:
            rates = np.bincount(drawn, minlength=count) / steps
            assert len(rates) == count
            np.testing.assert_allclose(rates, min(2 / count, 1.0), atol=2.5 * steps**-0.5)


def gradient_of(rows: Any, mask: Any, noise: float, key: jax.Array) -> tuple[Any, Any]:
    """(loss, gradient) of a step whose loss is the mean of w . x over a batch, at C = 1, B = 4."""

    def run(at: LocalStep, weights: Any, terms: Any) -> Losses:
        batch = at.inputs.streams["labelled"]
        each = batch.inputs @ weights[0]
        loss = batch_mean(each, batch.mask)
        outputs = {"view": Outputs(each[:, None], each[:, None], None)}
        return Losses({"loss": loss}, {}, jnp.zeros(0), outputs)

    whole = jnp.zeros(len(rows), jnp.int32)
    streams = {"labelled": Stream(whole, jnp.asarray(mask), whole, jnp.asarray(rows), key=key)}
    nothing: Any = dict.fromkeys(Step._fields)
    at: Any = LocalStep(**dict.fromkeys(LocalStep._fields))._replace(
        inputs=Step(**{**nothing, "streams": streams, "key": key}),
        terms=(federated.Term("loss", (), lambda step: jnp.zeros(())),),
        weights=(jnp.zeros(2),),
        run=run,
    )
    loss, (gradient,), losses = with_noisy_gradients(lambda at: at.gradient(at), 1.0, noise, 4)(at)
    assert losses.outputs["view"].logits.shape == (len(rows), 1)
    return loss, gradient


def test_gradients_of_examples_are_clipped_and_divided_by_the_expected_batch() -> None:
    """The spec's three vectors; an example that is not there, and one that is not finite."""
    rows = [[3.0, 4.0], [0.3, -0.4], [-0.6, 0.8], [1.0, 1.0], [np.nan, 0.0]]
    _, gradient = gradient_of(rows, [True, True, True, False, True], 0.0, KEY)
    np.testing.assert_allclose(gradient, [0.075, 0.3], atol=1e-6)


def test_noise_of_a_step_has_its_deviation() -> None:
    """1,000 keys x 2 numbers: the standard deviation is known to 1/sqrt(4,000) = 1.6 %."""
    draw = jax.jit(jax.vmap(lambda key: gradient_of(jnp.zeros((5, 2)), [True] * 5, 1.5, key)[1]))
    noise = draw(jax.random.split(KEY, 1000))
    assert np.std(noise) == pytest.approx(1.5 / 4, rel=0.064)
    assert abs(np.mean(noise)) < 4 * 1.5 / 4 / np.sqrt(2000)


@pytest.mark.parametrize(
    "name, changes, says",
    [
        ("fixmatch", {}, "clients of fixmatch do more than to learn from labelled examples"),
        ("xclp", {}, "clients of xclp do more"),
        ("fedavg", {"weighting": "examples"}, "weighting=uniform"),
        ("alone", {}, "nothing leaves a client"),
    ],
)
def test_what_private_steps_do_not_cover_is_refused(name, changes, says, data) -> None:
    setup = cases.setup("fedavg", data)._replace(rounds=4, **changes)
    made = methods.recipe(name, setup, **cases.of(name).settings)
    with pytest.raises(ValueError, match=f"config.privacy.name='dp_sgd'.*{says}"):
        private(made)


def test_a_wrapper_with_batches_of_its_own_is_refused(data) -> None:
    with pytest.raises(ValueError, match=r"without config\.around"):
        private(slow_clients(methods.recipe("fedavg", cases.setup("fedavg", data))))


def test_clients_of_which_one_pays_most() -> None:
    drawn = mechanisms(4, 2, None, (3, 11))
    assert [(one.clients, one.probability, steps) for one, steps in drawn] == [
        (3, 1.0, 2),
        (5, 0.8, 4),
        (9, 4 / 9, 6),
    ]


@pytest.mark.thorough
def test_private_steps_keep_the_promises() -> None:
    def made(data, **changes) -> federated.Method:
        setup = cases.setup("fedavg", data)._replace(**changes)
        return build(private(methods.recipe("fedavg", setup), 0.1))

    keep_promises(made)
