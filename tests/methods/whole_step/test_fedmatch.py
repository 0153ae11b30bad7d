"""Steps of FedMatch in a round with helpers, labels at clients and at the server: sigma by the
supervised loss, psi by the unsupervised one (arXiv 2006.12097, equations 2 to 6).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import toy
from tests.methods.whole_step import harness
from tests.methods.whole_step.harness import forward, softmax

SETTINGS = {
    "supervised_weight": 1.7,
    "agreement_weight": 0.9,
    "kl_weight": 0.6,
    "l2_weight": 0.05,
    "l1_weight": 0.02,
    "threshold": 0.6,
    "helper_interval": 2,
    "lr_schedule": "none",
    "psi_factor": 0.3,
    "l1_threshold": 0.05,
    "delta_threshold": 0.04,
}
FIRST = harness.first_weights()
# what clients uploaded last: another psi each
PSI = [jax.tree.map(lambda w, by=by: by * w[::-1] + 0.1, FIRST) for by in (0.8, -0.9, 0.5)]


def plus(one, other):
    return jax.tree.map(np.add, dict(one), dict(other))


def leaves_of(tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(dict(tree))])


def supervised(psi, batch: harness.Examples) -> harness.Loss:
    """lambda_s CE, of sigma."""
    return lambda sigma: (
        SETTINGS["supervised_weight"]
        * float(
            np.mean(
                harness.cross_entropy(forward(plus(sigma, psi), batch.view).logits, batch.observed)
            )
        )
    )


def unsupervised(sigma, received, helpers, batch: harness.Examples) -> harness.Loss:
    """lambda_a CE(vote) + lambda_i mean KL over confident examples, and the norms; of psi."""
    said = [softmax(forward(plus(received, psi), batch.view).logits) for psi in helpers]
    of_helpers = np.reshape(said, (len(helpers), len(batch.observed), toy.NUM_CLASSES))
    one_hot = np.eye(toy.NUM_CLASSES)

    def loss(psi) -> float:
        network = plus(sigma, psi)
        q = softmax(forward(network, batch.view).logits)
        sure = q.max(axis=1) >= SETTINGS["threshold"]
        vote = (one_hot[q.argmax(1)] + one_hot[of_helpers.argmax(2)].sum(0)).argmax(1)
        agreement = harness.cross_entropy(forward(network, batch.strong).logits, vote, 1.0)
        divergences = np.sum(of_helpers * np.log(of_helpers / q), axis=2)
        divergence = divergences.sum(axis=0) / max(len(helpers), 1)
        each = SETTINGS["agreement_weight"] * agreement + SETTINGS["kl_weight"] * divergence
        squares = np.sum((leaves_of(sigma) - leaves_of(psi)) ** 2)
        return float(
            np.sum(each[sure]) / max(sure.sum(), 1)
            + SETTINGS["l2_weight"] * squares
            + SETTINGS["l1_weight"] * np.abs(leaves_of(psi)).sum()
        )

    return loss


def uploaded(new, old, sparse: bool):
    """An entry that changed by no more than delta stays as it was; of psi, small ones count as 0."""

    def merged(w, w0):
        seen = np.where(np.abs(w) > SETTINGS["l1_threshold"], w, 0) if sparse else w
        return np.where(np.abs(seen - w0) > SETTINGS["delta_threshold"], w, w0)

    return jax.tree.map(merged, dict(new), old)


def helped(state):
    """The second round, which is one with helpers; all clients were seen."""
    store = state.terms["fedmatch"]
    stacked = jax.tree.map(lambda *own: jnp.stack([jnp.asarray(w) for w in own]), *PSI)
    store = store._replace(
        uploads={**store.uploads, "psi": stacked}, seen=jnp.ones_like(store.seen)
    )
    state = harness.in_round(1)(state)
    return state._replace(terms={**state.terms, "fedmatch": store})


def slices(examples: harness.Examples, size: int, steps: int) -> list[harness.Examples]:
    return [examples.at(slice(step * size, (step + 1) * size)) for step in range(steps)]


@pytest.mark.parametrize("at_server", [False, True], ids=["clients", "server"])
def test_sigma_and_psi(at_server: bool) -> None:
    """A round with helpers, and one without."""
    labelled = (0, 0, 0) if at_server else harness.LABELLED
    data = harness.federation(labelled, server=5 * at_server)
    own = {"unlabelled_batch_size": 2, "server_batch_size": 5} if at_server else {}
    run = harness.rounds_of(
        "fedmatch", data, 2, start=helped, run={"batch_size": 2}, **SETTINGS, **own
    )
    sigma = FIRST
    psi = jax.tree.map(lambda w: SETTINGS["psi_factor"] * w, FIRST)
    confident: list[bool] = []
    for info, state, number_of_helpers in zip(run.infos, run.states[1:], (2, 0), strict=True):
        assert info["helpers"] == number_of_helpers
        if at_server:  # which trains first
            sigma = harness.descended(supervised(psi, harness.server_of(data)), sigma)
        ends = []
        losses = []
        for number, client in enumerate(harness.clients_of(data)):
            helpers = [PSI[other] for other in range(3) if other != number][:number_of_helpers]
            known = len(client.labelled.observed)
            rest = len(client.others.observed)
            # half to even: 7 / 2 is 4, 3 / 2 is 2
            steps = round(known / 2) if known else round(rest / 2) if at_server else 1
            size = -(-rest // steps) if known else 2 if at_server else rest
            own_sigma, own_psi = sigma, psi
            for step in range(steps):
                value = 0.0
                if known:
                    loss = supervised(own_psi, slices(client.labelled, 2, steps)[step])
                    value += loss(own_sigma)
                    own_sigma = harness.descended(loss, own_sigma)
                batch = slices(client.others, size, steps)[step]
                loss = unsupervised(own_sigma, sigma, helpers, batch)
                q = softmax(forward(plus(own_sigma, own_psi), batch.view).logits)
                confident += (q.max(axis=1) >= SETTINGS["threshold"]).tolist()
                value += loss(own_psi)
                own_psi = harness.descended(loss, own_psi)
                losses.append(value)
            ends.append((uploaded(own_sigma, sigma, False), uploaded(own_psi, psi, True)))
        assert info["loss"] == pytest.approx(np.mean(losses), rel=1e-7)
        sigma, psi = (
            harness.mean_of(list(trees), harness.SIZES) for trees in zip(*ends, strict=True)
        )
        harness.assert_same(state.params, {"sigma": sigma, "psi": psi}, atol=5e-8)
    assert 0 < np.mean(confident) < 1
