"""A step of FixMatch, UDA, MixMatch, mean teacher, Pi-model, VAT and Pseudo-label, federated (the
formulas at the top of `fedjax_ssl.methods.consistency`, and the papers named there).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models
from tests import toy
from tests.methods.whole_step import harness
from tests.methods.whole_step.harness import (
    BATCH,
    assert_taught,
    cross_entropy,
    cycled,
    forward,
    softmax,
)

CLASSES = toy.NUM_CLASSES
FIRST = harness.first_weights()
WEIGHTS = {"unlabelled_weight": 1.4, "labelled_weight": 0.6, "unlabelled_ratio": 2}
THIRD = harness.in_round(2)  # r = 3, where a ramp is neither 0 nor 1


def squares(one: np.ndarray, other: np.ndarray) -> float:
    """Squared distance, averaged over rows and classes."""
    return float(np.mean((one - other) ** 2))


def both(client: harness.Examples, unsupervised: harness.Loss, factor: float = 1.0) -> harness.Loss:
    """w_s L_s + w_u a(r) L_u."""
    by = WEIGHTS["unlabelled_weight"] * factor
    known = harness.supervised(client, WEIGHTS["labelled_weight"])
    return harness.added(known, lambda params: by * unsupervised(params))


def hard_labels(params, seen: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest class, and where its probability reaches the threshold."""
    q = softmax(forward(params, seen).logits)
    return q.argmax(axis=1), q.max(axis=1) >= threshold


@pytest.mark.parametrize("labels_from", ["local", "global"])
def test_fixmatch(data, labels_from: str) -> None:
    """Two steps by the labels of the network itself, or of the one that was received. Predictions
    come from a moving average of the global networks.
    """
    run = harness.rounds_of(
        "fixmatch",
        data,
        2,
        run={"local_epochs": 2},
        threshold=0.55,
        ema_decay=0.3,
        labels_from=labels_from,
        **WEIGHTS,
    )
    networks = [FIRST]
    for number in range(2):
        ends = []
        losses = []
        counted = []
        for client in harness.clients_of(data):
            own = networks[-1]
            for step in range(2):
                teacher = own if labels_from == "local" else networks[-1]
                labels, sure = hard_labels(teacher, client.others.view, 0.55)
                counted += sure.tolist() * step

                def unsupervised(p, x=client.others, labels=labels, sure=sure) -> float:
                    rows = cross_entropy(forward(p, x.strong).logits, labels, 1.0)
                    return float(np.mean(sure * rows))

                loss = both(client, unsupervised)
                losses.append(loss(own))
                own = harness.descended(loss, own)
            ends.append(own)
        assert 0 < np.mean(counted) < 1
        assert run.infos[number]["pseudo_label_coverage"] == pytest.approx(np.mean(counted))
        assert run.infos[number]["loss"] == pytest.approx(np.mean(losses), rel=1e-7)
        networks.append(harness.mean_of(ends, harness.SIZES))
    harness.assert_same(run.params(), networks[-1], atol=5e-8)
    average = run.states[-1].terms["moving_average"].params
    harness.assert_same(average, harness.mean_of(networks[1:], [0.3, 0.7]), atol=5e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fixmatch", "mean_teacher", "pi_model", "vat", "pseudo_label"])
def test_without_weight_on_unlabelled_examples_only_labels_are_learned(data, name: str) -> None:
    """UDA would still anneal, and MixMatch mix labelled examples with the others."""
    run = harness.rounds_of(name, data, unlabelled_weight=0.0)
    losses = [harness.supervised(client) for client in harness.clients_of(data)]
    harness.assert_step(run, losses, FIRST)


def test_uda(data) -> None:
    """Sharpened targets, and labelled examples that the network knows already are left out."""
    settings = {"threshold": 0.5, "temperature": 0.6, "tsa": "exp", "tsa_rounds": 3}
    run = harness.rounds_of("uda", data, start=THIRD, **settings, **WEIGHTS)
    ceiling = np.exp(5 * (2 / 3 - 1)) * (1 - 1 / CLASSES) + 1 / CLASSES
    losses = []
    kept = []
    counted = []
    for client in harness.clients_of(data):
        others = client.others
        z = forward(FIRST, others.view).logits
        targets = softmax(z / 0.6)
        sure = softmax(z).max(axis=1) > 0.5
        counted += sure.tolist()
        known = client.labelled
        p_true = np.exp(-cross_entropy(forward(FIRST, known.view).logits, known.observed, 1.0))
        kept += (p_true <= ceiling).tolist()
        few = known.at(p_true <= ceiling)

        def unsupervised(p, others=others, targets=targets, sure=sure) -> float:
            q = softmax(forward(p, others.strong).logits)
            return float(np.mean(sure * -np.sum(targets * np.log(q), axis=1)))

        losses.append(both(few, unsupervised))
    assert 0 < np.mean(kept) < 1 and 0 < np.mean(counted) < 1
    harness.assert_step(run, losses, FIRST)


def test_mixmatch(data) -> None:
    """Row i of the n real ones is mixed with row n - 1 - i, by a share of at least a half."""
    settings = {"temperature": 0.6, "mixup_alpha": 0.6, "ramp_rounds": 8}
    run = harness.rounds_of("mixmatch", data, start=THIRD, **settings, **WEIGHTS)
    share = 1 - harness.mixup_share(0.6)
    losses = []
    for client in harness.clients_of(data):
        known = client.labelled.at(cycled(len(client.labelled.observed), BATCH))
        others = client.others.at(cycled(len(client.others.observed), 2 * BATCH))
        q = softmax(forward(FIRST, others.view).logits)
        guess = q ** (1 / 0.6) / np.sum(q ** (1 / 0.6), axis=1, keepdims=True)
        targets = np.concatenate([np.eye(CLASSES)[known.observed], guess, guess])
        inputs = np.concatenate([known.view, others.view, others.view])
        targets, inputs = (share * x + (1 - share) * x[::-1] for x in (targets, inputs))
        first = len(known.observed)

        def loss(p, inputs=inputs, targets=targets, first=first) -> float:
            p = softmax(forward(p, inputs).logits)
            entropies = -np.sum(targets * np.log(p), axis=1)[:first]
            unsupervised = squares(p[first:], targets[first:])
            return float(0.6 * entropies.sum() / max(first, 1) + 1.4 * 3 / 8 * unsupervised)

        losses.append(loss)
    harness.assert_step(run, losses, FIRST)


def test_mean_teacher(data) -> None:
    """Two steps: in the second the teacher lags behind its student."""
    settings = {"decay": 0.6, "ramp_rounds": 5}
    run = harness.rounds_of(
        "mean_teacher", data, start=THIRD, run={"local_epochs": 2}, **settings, **WEIGHTS
    )
    ramp = np.exp(-5 * (1 - 3 / 5) ** 2)
    trained = []
    for client in harness.clients_of(data):
        batches = cycled(len(client.observed), 4 * BATCH).reshape(2, -1)

        def loss_of(teacher, step: int, client=client, batches=batches) -> harness.Loss:
            seen = client.at(batches[step]).view
            taught = softmax(forward(teacher, seen).logits)
            return both(client, lambda p: squares(softmax(forward(p, seen).logits), taught), ramp)

        trained.append(harness.with_teacher(loss_of, 2, 0.6))
    assert_taught(run, trained, "consistency", harness.SIZES)


def test_pi_model(data) -> None:
    """Two views of every example, as the network saw them; the gradient flows through both."""
    seen: list[np.ndarray] = []

    def augment(key, inputs):
        return inputs + 0.3 * jax.random.gumbel(key, inputs.shape, inputs.dtype)

    def apply(params, state, inputs, **how):
        # a callback knows no numbers of 64 bits
        bits = jax.lax.bitcast_convert_type(inputs, jnp.uint32)
        jax.debug.callback(lambda x: seen.append(np.asarray(x).view(np.float64)[..., 0]), bits)
        return forward(params, inputs, jnp), state

    whole = harness.federation((3,), sizes=(7,))
    model = models.Model(harness.network().init, apply)
    run = harness.rounds_of(
        "pi_model",
        whole,
        start=THIRD,
        run={"model": model, "augment": augment},
        ramp_rounds=5,
        **WEIGHTS,
    )
    jax.effects_barrier()
    together, second = sorted(seen, key=len, reverse=True)
    labels = harness.client_of(whole, 0).observed[cycled(3, BATCH)]
    assert len(together) == 3 * BATCH and len(second) == 2 * BATCH
    assert np.abs(together[BATCH:] - second).min() > 1e-6

    def loss(p) -> float:
        logits = forward(p, together).logits
        rows = cross_entropy(logits[:BATCH], labels)
        first, other = softmax(logits[BATCH:]), softmax(forward(p, second).logits)
        ramp = np.exp(-5 * (1 - 3 / 5) ** 2)
        return float(0.6 * np.mean(rows) + 1.4 * ramp * squares(first, other))

    harness.assert_step(run, [loss], FIRST, sizes=(1,))


def test_vat(data) -> None:
    """With entropy minimization, which is the paper's VAT+EntMin."""
    settings = {"radius": 0.4, "entropy_weight": 0.7}
    run = harness.rounds_of("vat", data, **settings, **WEIGHTS)
    losses = []
    for client in harness.clients_of(data):
        seen = client.at(cycled(len(client.observed), 2 * BATCH)).view
        target = softmax(forward(FIRST, seen).logits)
        moved = seen + harness.adversarial(FIRST, seen, 0.4)

        def unsupervised(p, seen=seen, moved=moved, target=target) -> float:
            log_p = np.log(softmax(forward(p, moved).logits))
            q = softmax(forward(p, seen).logits)
            divergence = np.sum(target * (np.log(target) - log_p), axis=1)
            return float(np.mean(divergence) - 0.7 * np.mean(np.sum(q * np.log(q), axis=1)))

        losses.append(both(client, unsupervised))
    harness.assert_step(run, losses, FIRST)


def test_pseudo_label_beside_a_server_with_labels() -> None:
    """The server trains first, with the weight of labelled examples; the clients have none."""
    data = harness.federation((0, 0, 0), server=5)
    settings = {"threshold": 0.6, "ramp_start": 1, "ramp_end": 5, "server_batch_size": 5}
    run = harness.rounds_of("pseudo_label", data, start=THIRD, **settings, **WEIGHTS)
    counted = []
    begin = harness.descended(harness.supervised(harness.server_of(data), 0.6), FIRST)
    losses = []
    for client in harness.clients_of(data):
        size = len(client.observed)
        x = client.at(cycled(size, 2 * BATCH)).view
        labels, sure = hard_labels(begin, x, 0.6)
        counted += sure.tolist()

        def loss(p, x=x, labels=labels, sure=sure) -> float:
            rows = cross_entropy(forward(p, x).logits, labels, 1.0)
            return 1.4 * (3 - 1) / (5 - 1) * float(np.mean(sure * rows))

        losses.append(loss)
    assert 0 < np.mean(counted) < 1
    harness.assert_step(run, losses, begin)
