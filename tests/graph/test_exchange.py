"""The seam for protocols: what it asks clients for, and that it gives the labels of the kernels.

That protocols give the bits of `graph.IDEAL`, also where clients drop out: tests/secure.
"""

from dataclasses import replace

import chex
import jax
import numpy as np
import pytest

from fedjax_ssl import graph
from fedjax_ssl.graph import GraphSettings as Settings
from fedjax_ssl.graph.exchange import exchanged_neighbors, fraction_bits
from tests.graph import reference
from tests.graph.recorded_exchange import RecordedExchange
from tests.graph.test_propagation import clustered_codes

KEY = jax.random.key(0)
CLASSES = 3
BITS = 64
SETTINGS = Settings(BITS, num_neighbors=4, alpha=0.9)
PAPER = SETTINGS
CODE = replace(SETTINGS, similarity_power=3.0, label_norm="class", confidence_scale="client_max")


def federation(num_points=70):
    """Points of clients 2, 5 (without labels) and 9 in any order; some rows are padding, some
    have no code.
    """
    codes, truth = clustered_codes(1, num_points, BITS, CLASSES)
    random = np.random.default_rng(2)
    clients = random.choice([2, 5, 9], num_points).astype(np.int32)
    labels = np.where((random.random(num_points) < 0.3) & (clients != 5), truth, -1).astype(
        np.int32
    )
    return (
        codes,
        labels,
        dict(
            clients=clients,
            valid=random.random(num_points) < 0.9,
            has_code=random.random(num_points) < 0.9,
        ),
    )


CODES, LABELS, ROWS = federation()


def label(settings=SETTINGS, exchange=None, codes=CODES, labels=LABELS, **changes):
    return graph.label(codes, labels, CLASSES, settings, exchange=exchange, **{**ROWS, **changes})


@pytest.mark.parametrize(
    "settings",
    [
        PAPER,
        CODE,
        pytest.param(replace(PAPER, solver="conjugate_gradient"), marks=pytest.mark.thorough),
    ],
)
def test_an_exchange_gives_the_labels_of_the_kernels(settings):
    """The kernels do not round: scores are within the bound."""
    recorded = RecordedExchange()
    found = label(settings, recorded.exchange)
    kernels = label(settings)
    assert len(recorded.shares) == 1
    chex.assert_trees_all_equal_dtypes(found, kernels)
    np.testing.assert_array_equal(found.labels, kernels.labels)
    np.testing.assert_array_equal(found.valid, kernels.valid)
    np.testing.assert_allclose(found.scores, kernels.scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.confidence, kernels.confidence, atol=1e-3)


def test_an_exchange_may_do_one_of_both():
    recorded = RecordedExchange()
    distances = label(exchange=graph.Exchange(distances=recorded.distances))
    assert recorded.pairs and not recorded.shares
    chex.assert_trees_all_equal(distances, label())
    sums = label(exchange=graph.Exchange(row_sums=recorded.row_sums))
    chex.assert_trees_all_equal(sums, label(exchange=graph.IDEAL))


@pytest.mark.parametrize(
    "codes", [CODES[:1], CODES[:0], np.repeat(CODES[:1], 70, axis=0)], ids=("one", "none", "equal")
)
def test_neighbours_are_those_of_the_kernels(codes):
    rows = len(codes)
    usable = np.ones(rows, bool)
    found = exchanged_neighbors(graph.IDEAL, codes, ROWS["clients"][:rows], usable, SETTINGS)
    chex.assert_trees_all_equal(found, graph.nearest_neighbors(codes, BITS, 4))


def test_clients_give_their_own_codes_and_shares():
    recorded = RecordedExchange()
    label(exchange=recorded.exchange)
    assert recorded.pairs == [(2, 2), (2, 5), (2, 9), (5, 5), (5, 9), (9, 9)]
    for client in (2, 5, 9):
        own = CODES[ROWS["valid"] & ROWS["has_code"] & (ROWS["clients"] == client)]
        np.testing.assert_array_equal(recorded.codes[client], 4 * [own])
    (shares,) = recorded.shares
    assert {share.shape for share in shares.values()} == {(ROWS["valid"].sum(), CLASSES)}
    assert [client for client, share in shares.items() if share.any()] == [2, 9]


def test_without_labels_nothing_is_summed():
    recorded = RecordedExchange()
    found = label(exchange=recorded.exchange, labels=np.full_like(LABELS, -1))
    assert not recorded.shares and not found.valid.any() and not found.scores.any()


def test_worked_example_in_fixed_point():
    """XCLP section 9.2: E = round(2^f F) of both clients, here with the f that fits 2^32."""
    codes = reference.pack(reference.EXAMPLE_CODES)
    clients = np.repeat(np.int32([1, 2]), 3)
    settings = Settings(reference.EXAMPLE_BITS, 2, alpha=0.5)
    recorded = RecordedExchange()
    graph.label(
        codes, reference.EXAMPLE_LABELS, 2, settings, clients=clients, exchange=recorded.exchange
    )
    (shares,) = recorded.shares
    scale = 2.0 ** (fraction_bits(3, 2, settings) - 8)
    np.testing.assert_array_equal(np.rint(shares[1][:, 0] / scale), [302, 121, 21, 6, 34, 6])
    np.testing.assert_array_equal(np.rint(shares[2][:, 1] / scale), [12, 8, 167, 422, 13, 415])
    assert not shares[1][:, 1].any() and not shares[2][:, 0].any()


@pytest.mark.parametrize(
    "settings", [replace(PAPER, alpha=0.99), replace(PAPER, alpha=0.99, label_norm="class"), PAPER]
)
@pytest.mark.parametrize("num_labelled", [1, 5000])
def test_the_largest_possible_sum_fits(settings, num_labelled):
    length = 1.0 if settings.label_norm == "class" else num_labelled**0.5
    bits = fraction_bits(num_labelled, 72, settings)
    largest = length / (1 - settings.alpha)
    assert 2**bits * largest + 72 / 2 < 2**32 <= 2 ** (bits + 1) * 1.02 * largest


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"alpha is 0\.99999999; with 9 labels .* Lower alpha"):
        fraction_bits(9, 3, replace(PAPER, alpha=0.99999999))


def test_under_a_trace_an_exchange_is_refused():
    with pytest.raises(ValueError, match="an exchange runs on the host, between rounds"):
        jax.jit(lambda codes: label(exchange=graph.IDEAL, codes=codes))(CODES)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"distances": lambda *_: np.zeros((1, 1), np.int32)}, "must be int32 of shape"),
        (
            {"distances": lambda *given: graph.IDEAL.distances(*given) / 2},
            "must be int32 of shape",
        ),
        (
            {"distances": lambda *given: graph.IDEAL.distances(*given) + 2 * BITS},
            r"allowed: 0\.\.65",
        ),
        ({"row_sums": lambda *_: None}, "row_sums returned None; it must be uint32 of shape"),
    ],
)
def test_what_is_no_distance_or_sum_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        label(exchange=graph.IDEAL._replace(**change))


def test_an_exchange_needs_owners():
    with pytest.raises(ValueError, match="clients is None; an exchange"):
        label(exchange=graph.IDEAL, clients=None)
    with pytest.raises(ValueError, match="clients is None; an exchange"):
        graph.label(np.eye(3, dtype=np.float32), np.full(3, -1), 2, exchange=graph.IDEAL, key=KEY)
