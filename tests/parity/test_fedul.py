"""FedUL and its baselines against the authors' code: weights, batch statistics and losses of a
few rounds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from tests import toy
from tests.parity.parity import KEY, fixture, gaps_of, perceptron, under, without_chance


def trained(said, monkeypatch, name, rounds, decay=0.0, said_name="", first="first", **settings):
    """The largest differences of our rounds from the code's."""
    without_chance(monkeypatch, 0.3)
    sets, shares = ([said[f"{what}{client}"] for client in range(2)] for what in ("set", "shares"))
    sizes = np.array([len(owner) for owner in sets])
    number = [len(share) for share in shares]
    labels = np.full((2, sizes.max()), -1)
    matrix = np.zeros((2, max(number), 3))
    share = np.zeros((2, max(number)))
    for client, owner in enumerate(sets):
        labels[client, : sizes[client]] = owner
        matrix[client, : number[client]] = shares[client]
        share[client, : number[client]] = np.bincount(owner) / len(owner)
    weak = toy.weak_labels(labels, matrix, num_observations=number, from_sets=True, share=share)
    rows = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    data = toy.dealt(said["inputs"], said["labels"], rows, [0, 0], num_classes=3, weak=weak)
    run = toy.setup(
        data,
        model=perceptron(data, under(said, first)),
        learning_rate=0.01,
        local_optimizer=federated.local_optimizer("adam", weight_decay=decay),
        batch_size=7,
        local_epochs=2,
    )
    method = methods.build(name, run, **settings)
    states, _ = toy.every_state(method, KEY, data, rounds)
    gaps = {}
    for number, state in enumerate(states[1:]):
        gaps |= gaps_of(state, under(said, f"{said_name or name}{number}"), number)
    return gaps


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (
            "fedul",
            {
                "l1": 1e-2,
                "use_test_prior": False,
                "surrogate_loss": "ce_on_probs",
                "drop_last": True,
            },
        ),
        pytest.param(*("fedllp", {"l1": 1e-2}), marks=[pytest.mark.thorough, pytest.mark.promise]),
    ],
)
def test_weights_and_statistics_are_those_of_the_code(monkeypatch, exact, name, settings):
    assert max(trained(fixture("fedul"), monkeypatch, name, 3, **settings).values()) < 1e-12


@pytest.mark.thorough
@pytest.mark.promise
def test_fedllp_vat_is_the_code_but_for_statistics_and_lengths(monkeypatch, exact):
    """`whole_vat` is the code with perturbations of their length, and with running statistics that
    follow one pass.

    As released ("fedllp_vat") statistics follow a further pass in every step, and perturbations are
    as good as none: to the length of a gradient of about 1e-13 it adds 1e-8.
    """

    def start(key, shape, dtype):
        return (jnp.arange(np.prod(shape)).reshape(shape) % 7 - 2.5).astype(dtype)

    monkeypatch.setattr(jax.random, "normal", start)
    settings = {"l1": 1e-2, "vat_weight": 0.5, "rampup": "per_epoch"}
    said = fixture("fedul")
    gaps = {
        name: trained(said, monkeypatch, "fedllp_vat", 1, said_name=name, **settings)
        for name in ("whole_vat", "fedllp_vat")
    }
    assert max(gaps["whole_vat"].values()) < 1e-10
    assert gaps["fedllp_vat"]["weights 0"] > 1e-6 and gaps["fedllp_vat"]["statistics 0"] > 1
    assert np.median(said["vat_lengths"]) < 1e-5  # of 1


def test_fedpl_is_the_code_and_skips_its_steps(monkeypatch, exact):
    """A round on labels of the sets and one on its own; a batch without a pair is no step in the
    code.
    """
    said = fixture("fedul")
    settings = {"warmup_rounds": 1, "mix": "logits", "mix_alpha": 2.0, "skip_empty": True}
    gaps = {
        name: trained(
            said, monkeypatch, "fedpl", 2, decay=1e-2, said_name=name, first=first, **settings
        )
        for name, first in (("fedpl_flat", "flat"), ("fedpl", "first"))
    }
    assert said["fedpl_flat_skipped"] == 0 and max(gaps["fedpl_flat"].values()) < 1e-12
    assert said["fedpl_skipped"] == 1 and max(gaps["fedpl"].values()) < 1e-12
