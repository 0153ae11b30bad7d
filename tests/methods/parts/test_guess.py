"""Whose pseudo-labels, and which rows: numbers of the specification's checks, and one step by
hand.
"""

from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.federated.client_states import all_clients
from fedjax_ssl.methods.parts.guess import Guessing, Local, guesses_of
from fedjax_ssl.objectives import batch_mean, cross_entropy
from fedjax_ssl.testing import check_method, promises
from tests import toy
from tests.methods.test_sage import OURS, STRONG, THEIRS

KEY = jax.random.key(3)
METHODS = ("fixmatch", "uda", "pseudo_label", "mixmatch", "mean_teacher", "pi_model", "vat")


def step_of(guesses: Any) -> Any:
    """A step on the five samples, of a client that has begun."""
    nothing = dict.fromkeys(federated.Step._fields, ())
    client = toy.context(1).clients
    rows = federated.method.Stream(jnp.arange(5), jnp.ones(5, bool), jnp.zeros(5, int), ())
    local = Local(jnp.zeros(5, int), guesses.rule.start(jnp.asarray(5), 5))
    return federated.Step(
        **{**nothing, "streams": {"unlabelled": rows}, "client": client, "local": local}
    )


def guess(labels_from: str, threshold: float) -> Any:
    """Of the five samples of the specification."""
    logits = jnp.log(jnp.asarray(OURS))
    guesses = guesses_of(toy.setup(toy.federation()), Guessing(labels_from), threshold)
    theirs = logits if labels_from == "local" else jnp.log(jnp.asarray(THEIRS))
    return guesses.judged(step_of(guesses), theirs, logits)


@pytest.mark.parametrize(
    ("labels_from", "labels", "expected"),
    [
        ("global", [0, -1, 1, -1, 1], 0.3121673875),
        ("local", [0, 0, -1, -1, 0], 0.3779323788),
        ("either", [0, 1, 1, -1, 1], 0.5482213181),
    ],
)
def test_labels_masks_and_loss(
    float64, labels_from: str, labels: list[int], expected: float
) -> None:
    """Part B's check; its last number has 1e-10 added to probabilities, as in ProxyFL's code."""
    found = guess(labels_from, 0.95)
    np.testing.assert_array_equal(np.where(found.counted, found.labels, -1), labels)
    losses = cross_entropy(jnp.asarray(STRONG), found.labels)
    value = batch_mean(losses, jnp.ones(5, bool), found.counted)
    assert float(value) == pytest.approx(expected, abs=4e-9)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_two_steps_with_the_labels_of_the_received_model() -> None:
    """By hand: the labels stay those of the first step. With local ones the second step differs."""
    with jax.enable_x64(True):
        data = toy.federation(sizes=(8,), labelled=(4,))
        run = toy.setup(data, model=toy.linear_model(), learning_rate=2.0, local_epochs=2)
        run = run._replace(
            batch_size=4, augment=toy.same, strong_augment=lambda key, x: 0.5 * x, max_labelled=4
        )

        def trained(labels_from: str) -> Any:
            method = methods.build(
                "fixmatch", run, threshold=0.6, unlabelled_ratio=1, labels_from=labels_from
            )
            start = method.init(KEY, data)
            return start, jax.jit(method.round)(KEY, start, data)[0].params["model"]

        start, found = jax.device_get(trained("global"))
        _, local = jax.device_get(trained("local"))
    w = np.array(start.params["model"]["w"])
    b = np.array(start.params["model"]["b"])
    inputs = np.asarray(data.inputs)
    known = inputs[:4]
    weak = inputs[4:8]
    received = softmax(weak @ w + b)
    counted = (received.max(1) >= 0.6)[:, None]
    targets = np.eye(toy.NUM_CLASSES)[received.argmax(1)]
    for _ in range(2):
        slope = (softmax(known @ w + b) - np.eye(toy.NUM_CLASSES)[data.labels[:4]]) / 4
        other = counted * (softmax(0.5 * weak @ w + b) - targets) / 4
        w, b = (
            w - 2.0 * (known.T @ slope + 0.5 * weak.T @ other),
            b - 2.0 * (slope.sum(0) + other.sum(0)),
        )
    np.testing.assert_allclose(found["w"], w, rtol=1e-9)
    np.testing.assert_allclose(found["b"], b, rtol=1e-9)
    assert np.abs(local["w"] - w).max() > 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_labels_of_the_received_model_and_thresholds(name: str) -> None:
    data = toy.federation()
    run = toy.setup(data, rounds=4)
    rule = {} if name == "mean_teacher" else {"threshold_rule": "freematch"}
    if name == "uda":
        rule["threshold_scope"] = "round"
    method = methods.build(name, run, labels_from="either", **rule)
    jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)


def test_who_receives_nothing_has_local_labels() -> None:
    alone = toy.setup(toy.federation(), federated_optimizer=federated.local())
    with pytest.raises(ValueError, match=r"labels_from is 'either', but clients that train alone"):
        methods.build("fixmatch", alone, labels_from="either")
    with pytest.raises(ValueError, match=r"labels_from is 'globl'.* Did you mean 'global'"):
        methods.build("fixmatch", alone, labels_from="globl")


RULES = ("flexmatch", "freematch", "softmatch")


def trained(data: Any, rounds: int, **settings: Any) -> Any:
    """The state of FixMatch after some rounds, and the metrics of the last one."""
    run = toy.setup(data, model=toy.linear_model(), local_epochs=2, strong_augment=toy.jitter)
    method = methods.build("fixmatch", run, unlabelled_ratio=1, **settings)
    state = jax.jit(method.init)(KEY, data)
    one_round = jax.jit(method.round)
    for _ in range(rounds):
        state, info = one_round(KEY, state, data)
    assert one_round._cache_size() == 1, "a round leaves the types that it began with"
    return state, info


def model_bytes(data: Any) -> tuple[int, int]:
    """What a round moves without thresholds: down, up; a client."""
    _, info = trained(data, 1)
    return int(info["bytes_down"]), int(info["bytes_up"])


@pytest.mark.parametrize(
    ("rule", "down", "up"),
    [
        pytest.param("flexmatch", 7, 4, marks=pytest.mark.thorough),
        ("freematch", 7, 7),
        pytest.param("softmatch", 5, 5, marks=pytest.mark.thorough),
    ],
)
def test_what_a_rule_has_learned_is_sent_and_counted(rule: str, down: int, up: int) -> None:
    """With K = 3: FlexMatch's K + 1 changes of counts, and K rates more on the way down; 2 K + 1
    and K + 2 averages of FreeMatch and SoftMatch.
    """
    data = toy.federation()
    plain = model_bytes(data)
    _, info = trained(data, 1, threshold_rule=rule, threshold=0.4)
    clients = int(info["clients"])
    assert int(info["bytes_down"]) - plain[0] == 4 * clients * down
    assert int(info["bytes_up"]) - plain[1] == 4 * clients * up
    own, info = trained(data, 1, threshold_rule=rule, threshold=0.4, threshold_scope="client")
    assert (int(info["bytes_down"]), int(info["bytes_up"])) == plain
    assert not jax.tree.leaves(own.terms["consistency"].known)


@pytest.mark.parametrize("rule", RULES)
def test_with_one_client_both_scopes_are_one(rule: str) -> None:
    """What is sent to the only client is what it would have kept."""
    data = toy.only(toy.federation(), 0)
    common, _ = trained(data, 3, threshold_rule=rule, threshold=0.4)
    own, _ = trained(data, 3, threshold_rule=rule, threshold=0.4, threshold_scope="client")
    chex.assert_trees_all_close(common.params, own.params, rtol=1e-5)
    if rule == "flexmatch":
        counts = common.terms["consistency"].known.common.counts
        examples = data.num_examples[0] - data.num_labelled[0]
        assert float(jnp.sum(counts)) == float(examples)
        seen = np.asarray(common.clients.terms["consistency"])[0]
        np.testing.assert_array_equal(np.bincount(seen[seen >= 0], minlength=3), counts[:3])


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=pytest.mark.thorough) for rule in RULES[1:]]
)
def test_a_round_begins_with_what_the_received_model_says_of_all_examples(rule: str) -> None:
    """Where a step has each of them once, as averages that forget everything before it; nothing of
    it travels, and nothing is kept.
    """
    data = toy.only(toy.federation(), 0)
    size = int(data.num_examples[0] - data.num_labelled[0])
    run = toy.setup(
        data, model=toy.linear_model(), batch_size=size, local_epochs=1, strong_augment=toy.jitter
    )
    results = []
    for scope, decay in (("round", 0.999), ("client", 0.0)):
        method = methods.build(
            "fixmatch",
            run,
            unlabelled_ratio=1,
            threshold_rule=rule,
            threshold_scope=scope,
            threshold_decay=decay,
        )
        start = jax.jit(method.init)(KEY, data)
        results.append(jax.jit(method.round)(KEY, start, data))
    (anew, info), (forgetful, plain) = results
    chex.assert_trees_all_close(anew.params, forgetful.params, rtol=1e-5)
    assert info["pseudo_label_coverage"] > 0
    assert int(info["bytes_down"]) == int(plain["bytes_down"])
    assert not jax.tree.leaves(anew.clients.terms) and jax.tree.leaves(forgetful.clients.terms)


@pytest.mark.thorough
def test_classes_of_a_round_are_counted_by_the_received_model() -> None:
    """FlexMatch: examples by class where the model is sure, and those without one."""
    data = toy.federation()
    run = toy.setup(data, model=toy.linear_model())
    how = Guessing(threshold_rule="flexmatch", threshold_scope="round")
    term = guesses_of(run, how, 0.4).term("t", (), lambda step: None)
    method = methods.build("fedavg", run)
    state = method.init(KEY, data)
    clients = all_clients(data)
    context = SimpleNamespace(
        clients=clients, params=state.params["model"], model_state={}, inputs=data.inputs
    )
    sent, _ = term.server.prepare(None, context)
    q = jax.nn.softmax(method.predict(state, data.inputs))[data.index]
    real = (np.arange(q.shape[1]) < data.num_examples[:, None]) & (clients.observed < 0)
    sure = real & (q.max(2) >= 0.4)
    best = np.argmax(q, axis=2)
    expected = [np.bincount(own[rows], minlength=3) for own, rows in zip(best, sure, strict=True)]
    np.testing.assert_array_equal(sent.own.common.counts[:, :3], expected)
    np.testing.assert_array_equal(sent.own.common.counts[:, 3], (real & ~sure).sum(1))


def test_a_mean_confidence_of_nothing_counts_everything() -> None:
    """FreeMatch with t at most 0 and without fairness is FixMatch without a threshold."""
    data = toy.federation()
    free, _ = trained(
        data, 2, threshold_rule="freematch", threshold_ceiling=0.0, fairness_weight=0.0
    )
    fixed, _ = trained(data, 2, threshold=0.0)
    chex.assert_trees_all_close(free.params, fixed.params, rtol=1e-6)


@pytest.mark.thorough
def test_a_threshold_that_is_never_reached_leaves_the_labels() -> None:
    """The same bits by every rule, and those of federated averaging in the same batches but for the
    rounding of a pass with fewer rows.
    """
    data = toy.federation()
    never = [
        {"threshold": 1.0},
        {"threshold_rule": "flexmatch", "threshold_floor": 1.0},
        {"threshold_rule": "freematch", "threshold_floor": 1.0, "fairness_weight": 0.0},
    ]
    first, *others = (trained(data, 2, **settings)[0].params for settings in never)
    for other in others:
        chex.assert_trees_all_equal(first, other)
    labels, _ = trained(data, 2, unlabelled_weight=0.0)
    chex.assert_trees_all_close(first, labels.params, rtol=1e-6, atol=1e-7)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULES)
def test_rules_keep_the_promises(rule: str) -> None:
    check_method(
        "fixmatch",
        promises.Special(learns_without_labels=True),
        threshold_rule=rule,
        threshold=0.4,
        labels_from="either",
        unlabelled_ratio=2,
    )


def test_settings_that_the_federation_cannot_have() -> None:
    at_server = toy.setup(toy.weak_federation("server"), max_labelled=0)
    with pytest.raises(ValueError, match=r"alignment is 'labels', but no client has a label"):
        methods.build("fixmatch", at_server, threshold_rule="softmatch", alignment="labels")
    alone = toy.setup(toy.federation(), federated_optimizer=federated.local())
    with pytest.raises(ValueError, match=r"threshold_scope is 'round', .* alone receive none"):
        methods.build("fixmatch", alone, threshold_rule="freematch", threshold_scope="round")
    in_parts = toy.setup(toy.federation(), num_parts=2)
    with pytest.raises(ValueError, match=r"unlabelled examples come in 2 parts"):
        methods.build("fixmatch", in_parts, threshold_rule="flexmatch")
    with pytest.raises(ValueError, match=r"threshold_rule is 'freemtch'.* 'freematch'"):
        methods.build("fixmatch", in_parts, threshold_rule="freemtch")
    with pytest.raises(ValueError, match=r"'mean_teacher' has no option 'threshold_rule'"):
        methods.build("mean_teacher", in_parts, threshold_rule="freematch")
