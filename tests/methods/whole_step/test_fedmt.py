"""Steps of FedMT, its baselines FedTrans and FedRep, SemiFL and training at the server alone (arXiv
2210.02042, equations 1 to 4 and algorithm 1; SemiFL, arXiv 2106.01432, section 3).
"""

import jax
import numpy as np
import optax
import pytest

from fedjax_ssl import federated
from tests import toy
from tests.methods.whole_step import harness
from tests.methods.whole_step.harness import SIZES, cross_entropy, forward, softmax

FIRST = harness.first_weights()
CLASSES = toy.NUM_CLASSES
WHOLE = {"batch_size": max(SIZES)}  # one batch holds a client's examples
AT_SERVER = {"server_batch_size": harness.SERVER, "server_epochs": 1}
MIX = 0.4  # weight of the mixtures
ALPHA = 0.6
WITH_COARSE = (2, 4, 3)  # examples of each client that have a coarse label


@pytest.fixture(scope="module")
def coarse():
    """Class labels at two clients, coarse labels of most other examples, and a server."""
    made = harness.federation(weak="coarse", server=harness.SERVER)
    return harness.with_fewer_weak(made, WITH_COARSE)


@pytest.fixture(scope="module")
def unlabelled():
    """Labels at the server alone."""
    return harness.federation((0, 0, 0), server=harness.SERVER)


class Confident:
    """A client's pseudo-labels by the model that it received, and its losses on them."""

    def __init__(self, params, client: harness.Examples, threshold: float):
        self.client = client
        q = softmax(forward(params, client.view).logits)
        known = client.observed >= 0
        self.likeliest = q.argmax(axis=1)
        self.labels = np.where(known, client.observed, self.likeliest)
        self.sure = known | (q.max(axis=1) > threshold)
        # the order of the batch, and the partners drawn for it
        self.fix = np.flatnonzero(self.sure)[::-1]
        draws = np.arange(max(SIZES))[::-1][: len(self.fix)]
        self.mix = draws % len(client.observed)

    def loss(self, params) -> float:
        """CE(strong view) on the confident ones."""
        logits = forward(params, self.client.strong[self.fix]).logits
        return float(np.mean(cross_entropy(logits, self.labels[self.fix], 1.0)))

    def mixed(self, params) -> float:
        """s CE(x_s, y_fix) + (1 - s) CE(x_s, y_mix)."""
        share = harness.mixup_share(ALPHA)
        view = self.client.view
        logits = forward(params, share * view[self.fix] + (1 - share) * view[self.mix]).logits
        first, second = (
            np.mean(cross_entropy(logits, self.labels[places], 1.0))
            for places in (self.fix, self.mix)
        )
        return float(share * first + (1 - share) * second)


def at_server(params, data):
    """Equation 1 and one gradient step."""
    return harness.descended(harness.supervised(harness.server_of(data)), params)


def test_semifl_with_momentum_of_the_global_model(unlabelled) -> None:
    """v = 0.5 v + (W - mean of the clients), W - v, then the server; who is sure of nothing sits
    out.
    """
    momentum = {"federated_optimizer": federated.fedopt(optax.sgd(1.0, 0.5)), **WHOLE}
    settings = {"threshold": 0.62, "mix_weight": MIX, "mixup_alpha": ALPHA, **AT_SERVER}
    run = harness.rounds_of("semifl", unlabelled, 2, run=momentum, **settings)
    params = FIRST
    velocity = jax.tree.map(np.zeros_like, FIRST)
    took_part = []
    for number in range(2):
        made = [Confident(params, client, 0.62) for client in harness.clients_of(unlabelled)]
        there = [own for own in made if len(own.fix)]
        losses = [harness.added(own.loss, lambda p, own=own: MIX * own.mixed(p)) for own in there]
        sizes = [len(own.client.observed) for own in there]
        mean = harness.federated_step(losses, params, run.infos[number]["loss"], sizes)
        velocity = jax.tree.map(lambda v, w, m: 0.5 * v + w - m, velocity, dict(params), mean)
        moved = jax.tree.map(np.subtract, dict(params), velocity)
        params = at_server(moved, unlabelled)
        harness.assert_same(run.params(number + 1), params, atol=3e-8)
        took_part += [len(own.fix) / len(own.client.observed) for own in made]
    assert min(took_part) == 0 < max(took_part) < 1


def test_the_server_alone(unlabelled) -> None:
    run = harness.rounds_of("single", unlabelled, **AT_SERVER)
    harness.assert_same(run.params(), at_server(FIRST, unlabelled))


def projection(examples: harness.Examples, matrix: np.ndarray) -> harness.Loss:
    """-log (M p)_j for a coarse label j, and cross-entropy for a class label (equation 3); the mean
    is over examples with either.
    """
    told = examples.at((examples.observed >= 0) | (examples.weak >= 0))

    def loss(params) -> float:
        logits = forward(params, told.view).logits
        seen = softmax(logits) @ matrix.T
        coarse = -np.log(seen[np.arange(len(logits)), told.weak])
        own = cross_entropy(logits, told.observed)
        return float(np.mean(np.where(told.observed >= 0, own, coarse)))

    return loss


def estimate(own: Confident) -> np.ndarray:
    """M_jk: of the confident examples with pseudo-label k, the share with coarse label j (equation
    4); the client's frequencies of coarse labels where there is none.
    """
    labels = own.client.weak
    frequencies = np.array([np.mean(labels[labels >= 0] == j) for j in range(2)])
    matrix = np.zeros((2, CLASSES))
    for k in range(CLASSES):
        counted = own.sure & (own.likeliest == k) & (labels >= 0)
        counts = np.array([np.sum(counted & (labels == j)) for j in range(2)])
        matrix[:, k] = counts / counts.sum() if counts.sum() else frequencies
    return matrix


@pytest.mark.parametrize("known", [True, False], ids=["known", "estimated"])
def test_fedmt(coarse, known: bool) -> None:
    """With an estimate the projection is of the confident examples, as in Algorithm 1, and the
    server trains alone in the first round; with the known matrix it is of all, as in equation 3.
    """
    run = harness.rounds_of(
        "fedmt",
        coarse,
        1 if known else 2,
        run=WHOLE,
        correspondence="known" if known else "estimated",
        threshold=0.45,
        fix_weight=0.8,
        mix_weight=MIX,
        projection_weight=1.3,
        projection_examples="all" if known else "fix",
        mixup_alpha=ALPHA,
        warm_start=not known,
        **AT_SERVER,
    )
    begin = FIRST if known else at_server(FIRST, coarse)
    harness.assert_same(run.params(0 if known else 1), begin)
    if not known:
        assert run.infos[0]["clients"] == run.infos[0]["bytes_down"] == 0
    losses = []
    matrices = []
    unknown = []
    for client in harness.clients_of(coarse):
        own = Confident(begin, client, 0.45)
        matrix = toy.COARSE if known else estimate(own)
        seen = client if known else client.at(own.fix)
        projected = projection(seen, matrix)
        matrices.append(matrix)
        losses.append(
            lambda p, own=own, projected=projected: (
                1.3 * projected(p) + 0.8 * own.loss(p) + MIX * own.mixed(p)
            )
        )
        untold = (seen.observed < 0) & (seen.weak < 0)
        unknown.append(np.any(untold))
    assert any(unknown)
    if not known:
        assert any(0 < entry < 1 for entry in np.ravel(matrices))
    mean = harness.federated_step(losses, begin, run.infos[-1]["loss"])
    harness.assert_same(run.params(), at_server(mean, coarse), atol=2e-8)


def of_coarse_labels(client: harness.Examples, fixed, *moved: str) -> harness.Loss:
    """Cross-entropy of the second head's first two outputs, of the layers that move."""
    told = client.at(client.weak >= 0)

    def loss(params) -> float:
        params = {**fixed, **{layer: params[layer] for layer in moved}}
        logits = forward(params, told.view).aux_logits[:, :2]
        return float(np.mean(cross_entropy(logits, told.weak, 1.0)))

    return loss


def of_classes(data, fixed, *moved: str) -> harness.Loss:
    """The server's cross-entropy, of the layers that move."""
    known = harness.supervised(harness.server_of(data))
    return lambda params: known({**fixed, **{layer: params[layer] for layer in moved}})


@pytest.mark.parametrize("finetune", ["all", pytest.param("head", marks=pytest.mark.thorough)])
def test_fedtrans(coarse, finetune: str) -> None:
    """Coarse labels move body and second head; then the server moves the head, and the body below
    the new head if it may.
    """
    settings = {"coarse_rounds": 1, "finetune": finetune, **AT_SERVER}
    run = harness.rounds_of("fedtrans", coarse, 2, run=WHOLE, **settings)
    clients = harness.clients_of(coarse)
    losses = [of_coarse_labels(client, FIRST, "body", "aux_head") for client in clients]
    params = harness.federated_step(losses, FIRST, run.infos[0]["loss"])
    for group in run.states[1].params.values():
        harness.assert_same(group, {layer: params[layer] for layer in group})
    loss = of_classes(coarse, params, "head", "body")(params)
    assert run.infos[1]["server_loss"] == pytest.approx(loss) and run.infos[1]["clients"] == 0
    for layer in ("head", "body") if finetune == "all" else ("head",):
        params = harness.descended(of_classes(coarse, params, layer), params)
    for group in run.states[2].params.values():
        harness.assert_same(group, {layer: params[layer] for layer in group}, atol=2e-8)


def test_fedrep(coarse) -> None:
    """Two steps of a head and one of the body below it; the server is one more client, of weight
    1.
    """
    counting = {"model": harness.counting_network(), **WHOLE}
    run = harness.rounds_of(
        "fedrep", coarse, run=counting, head_epochs=2, server_batch_size=harness.SERVER
    )
    # batch statistics: the mean of all members, each of three passes
    assert float(run.states[1].model_state["passes"]) == pytest.approx(3, rel=1e-12)
    ends = []
    for client in harness.clients_of(coarse):
        params = FIRST
        for layer in ("aux_head", "aux_head", "body"):
            params = harness.descended(of_coarse_labels(client, params, layer), params)
        ends.append(params)
    server = FIRST
    for layer in ("head", "head", "body"):
        server = harness.descended(of_classes(coarse, server, layer), server)
    body = harness.mean_of([end["body"] for end in (*ends, server)], [*SIZES, 1])
    found = run.states[1].params
    harness.assert_same(found["body"]["body"], body)
    harness.assert_same(found["head"]["head"], server["head"])
    own_of = federated.own_model(run.method.recipe.groups)
    for number, end in enumerate(ends):
        own, _ = own_of(run.states[1], np.int32(number))
        harness.assert_same(
            own, {"body": body, "head": server["head"], "aux_head": end["aux_head"]}
        )
