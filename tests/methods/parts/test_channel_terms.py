"""What the methods for weak labels share, and what the engine does for them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.federated import all_clients
from fedjax_ssl.methods.parts.channel_terms import channel_term, check_channels, with_l1
from tests import toy

KEY = jax.random.key(3)


def test_the_l1_norm_is_a_term_unless_its_weight_is_zero() -> None:
    terms = (channel_term(toy.setup(toy.federation())),)
    assert with_l1(terms, 0.0) is terms
    assert [term.name for term in with_l1(terms, 0.1)] == ["channel", "l1"]
    with pytest.raises(ValueError, match=r"l1 is -0\.1"):
        with_l1(terms, -0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["semifl", "fedmt", "mixed"])
def test_methods_are_built_where_the_clients_sizes_are_looked_at_before_training(name: str) -> None:
    """As placement "auto" does on accelerators; what is confident is not known then."""
    data = toy.weak_federation("coarse")
    method = toy.executed(methods.build(name, toy.setup(data)), all_clients=all_clients(data))
    jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)


@pytest.mark.thorough
def test_the_servers_work_counts_and_a_server_that_diverges_is_seen() -> None:
    data = toy.weak_federation("server")
    inputs = data.inputs.at[data.server_index].set(jnp.nan)
    run = toy.setup(data, model="linear")
    method = methods.build("semifl", run, threshold=0.3, server_epochs=2, server_batch_size=5)
    found = [
        toy.train(method, KEY, one, 1) for one in (data, dataclasses.replace(data, inputs=inputs))
    ]
    (_, (info,)), (after, (log,)) = found
    assert info["server_dropped"] == 0 and np.isfinite(info["server_loss"])
    assert info["local_steps"] >= 4 and info["examples"] >= 2 * toy.NUM_SERVER
    assert log["server_dropped"] == 1 and np.isnan(log["server_loss"])
    assert log["dropped_clients"] == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))


def test_an_unknown_correspondence_hides_nothing_about_other_clients() -> None:
    data = toy.federation(weak="coarse", labelled=(0,) * 6)
    unknown = data.weak.matrix.at[0].set(0.0)
    unsure = dataclasses.replace(data, weak=dataclasses.replace(data.weak, matrix=unknown))
    assert check_channels(unsure) == [], "what an estimate will tell is not known"
    wrong = dataclasses.replace(
        unsure, weak=dataclasses.replace(unsure.weak, matrix=unknown.at[4, :, 1].set(0.0))
    )
    with pytest.raises(
        ValueError, match=r"Column 1 of the correspondence matrix.*client 4.* is all 0"
    ):
        check_channels(wrong)
    known = check_channels(data)
    assert len(known) == 1 and "as a whole does not identify" in known[0]
    assert check_channels(dataclasses.replace(data, num_server=jnp.asarray(3))) == []


def test_evaluation_does_not_look_at_weak_labels() -> None:
    data = toy.weak_federation("sets")
    method = methods.build("fedul", toy.setup(data, model="linear"))
    state = jax.jit(method.init)(KEY, data)
    scores = federated.evaluate(method, state, data)
    assert scores == federated.evaluate(method, state, dataclasses.replace(data, weak=None))
