import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.federated import Client, RoundContext
from fedjax_ssl.methods.parts.terms import (
    PseudoLabels,
    diagnose_pseudo_labels,
    network_features,
)
from tests import toy


def a_round(data, ids: list[int], key: jax.Array | None = None) -> RoundContext:
    """A round in which these clients take part."""
    model = toy.linear_model()
    params, state = model.init(jax.random.key(0))
    rows = jnp.asarray(ids, jnp.int32)
    index = data.index[rows]
    real = jnp.arange(index.shape[1], dtype=jnp.int32) < data.num_examples[rows][:, None]
    observed = jnp.where(real, data.observed[index], -1)
    clients = Client(
        rows, index, observed, data.num_labelled[rows], data.num_examples[rows], {}, ()
    )
    return RoundContext(
        key=jax.random.key(0) if key is None else key,
        run_key=jax.random.key(0),
        number=jnp.zeros((), jnp.int32),
        clients=clients,
        valid=jnp.ones(rows.shape, bool),
        all_clients=clients,
        params=params,
        groups={"model": params},
        model_state=state,
        inputs=data.inputs,
    )


def setup(data, **changes):
    return toy.setup(data, model=toy.linear_model(), evaluation_batch_size=7, **changes)


def features(run, context: RoundContext, key: jax.Array | None = None) -> np.ndarray:
    """`network_features` in one program."""
    return np.asarray(
        jax.jit(
            lambda context, key: network_features(run, context, *(() if key is None else (key,)))
        )(context, key)
    )


@pytest.mark.parametrize("key", [None, jax.random.key(4)], ids=["plain", "augmented"])
def test_network_features_do_not_depend_on_cohort_and_padding(key) -> None:
    """A client's identity decides its randomness, not its slot."""
    data = toy.federation()
    wide = toy.padded(data)
    size = toy.SIZES[5]
    alone = features(setup(data, augment=toy.jitter), a_round(data, [5]), key)[0, :size]
    among = features(setup(wide, augment=toy.jitter), a_round(wide, [0, 3, 5]), key)[2, :size]
    np.testing.assert_allclose(alone, among, rtol=1e-6 * (key is not None))
    noise = alone - features(setup(data), a_round(data, [5]))[0, :size]
    draws = 1 if key is None else size  # every example has its own
    assert len(np.unique(noise[:, 0])) == draws


def test_diagnostics_count_unlabelled_examples_only() -> None:
    data = toy.federation()
    context = a_round(data, [0, 2])
    truth = np.asarray(data.labels)[np.asarray(context.clients.rows)]
    labels = np.full(truth.shape, -1, np.int32)
    confidence = np.random.default_rng(0).uniform(size=truth.shape).astype(np.float32)
    # rows 0..3 of client 0 are labelled and do not count; 4..7 are right
    labels[0, :8] = truth[0, :8]
    labels[0, 8:10] = (truth[0, 8:10] + 1) % 3  # two are wrong, 10 and 11 got none
    labels[1, :7] = (truth[1, :7] + 1) % 3  # client 2 has seven, all wrong
    labels[1, 7:] = truth[1, 7:]  # padding
    found = diagnose_pseudo_labels(
        PseudoLabels(jnp.asarray(labels), jnp.asarray(confidence), jnp.asarray(confidence)),
        jnp.asarray(truth),
        context.clients,
    )
    wrong = np.concatenate([confidence[0, 8:10], confidence[1, :7]])
    assert float(found["pseudo_label_accuracy"]) == pytest.approx(4 / 13)
    assert float(found["pseudo_label_coverage"]) == pytest.approx(13 / 15)
    assert float(found["confidence_correct"]) == pytest.approx(confidence[0, 4:8].mean(), rel=1e-6)
    assert float(found["confidence_wrong"]) == pytest.approx(wrong.mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("clients", "known", "coverage"), [([3, 4], True, np.nan), ([2], False, 1.0)]
)
def test_diagnostics_without_anything_to_average_are_nan(clients, known, coverage) -> None:
    """Labelled examples only, or examples whose truth is unknown."""
    data = toy.federation()
    context = a_round(data, clients)
    labels = data.labels[context.clients.rows]
    ones = jnp.ones(labels.shape)
    truth = labels if known else jnp.full_like(labels, -1)
    found = diagnose_pseudo_labels(PseudoLabels(labels, ones, ones), truth, context.clients)
    np.testing.assert_equal(float(found.pop("pseudo_label_coverage")), coverage)
    assert all(np.isnan(value) for value in found.values())
