"""The seam for protocols: a toy protocol in it gives the bits of `graph.IDEAL`, and neighbours
those of the kernels.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import graph
from fedjax_ssl.graph import GraphSettings as Settings
from fedjax_ssl.graph.exchange import exchanged_neighbors, fraction_bits
from tests.graph import reference
from tests.graph.masked_exchange import MaskedExchange
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
    return graph.xclp_from_codes(
        codes, labels, CLASSES, settings, exchange=exchange, **{**ROWS, **changes}
    )


@pytest.mark.parametrize(
    "settings",
    [
        PAPER,
        CODE,
        pytest.param(replace(PAPER, solver="conjugate_gradient"), marks=pytest.mark.thorough),
    ],
)
def test_a_protocol_gives_the_bits_of_the_ideal(settings):
    protocol = MaskedExchange()
    found = label(settings, protocol.exchange)
    ideal = label(settings, graph.IDEAL)
    kernels = label(settings)
    assert protocol.calls == 1
    jax.tree.map(np.testing.assert_array_equal, found, ideal)
    jax.tree.map(
        lambda one, other: np.testing.assert_array_equal(one.dtype, other.dtype), found, kernels
    )
    # The kernels do not round: labels are the same, scores within the bound.
    np.testing.assert_array_equal(found.labels, kernels.labels)
    np.testing.assert_array_equal(found.valid, kernels.valid)
    np.testing.assert_allclose(found.scores, kernels.scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.confidence, kernels.confidence, atol=1e-3)


@pytest.mark.parametrize("settings", [PAPER, CODE])
def test_a_protocol_for_distances_alone_gives_the_bits_of_the_kernels(settings):
    protocol = MaskedExchange()
    found = label(settings, graph.Exchange(distances=protocol.distances))
    assert protocol.pairs and not protocol.calls
    jax.tree.map(np.testing.assert_array_equal, found, label(settings))


def test_a_protocol_for_sums_alone_gives_the_bits_of_the_ideal():
    found = label(exchange=graph.Exchange(row_sums=MaskedExchange().row_sums))
    jax.tree.map(np.testing.assert_array_equal, found, label(exchange=graph.IDEAL))


def test_neighbours_are_those_of_the_kernels():
    usable = jnp.asarray(ROWS["valid"] & ROWS["has_code"])
    found = exchanged_neighbors(MaskedExchange().exchange, CODES, ROWS["clients"], usable, SETTINGS)
    jax.tree.map(
        np.testing.assert_array_equal, found, graph.nearest_neighbors(CODES, BITS, 4, usable)
    )
    # one point, none, all the same
    for codes in (CODES[:1], CODES[:0], np.repeat(CODES[:1], 70, axis=0)):
        rows = len(codes)
        found = exchanged_neighbors(
            graph.IDEAL, codes, ROWS["clients"][:rows], np.ones(rows, bool), SETTINGS
        )
        jax.tree.map(np.testing.assert_array_equal, found, graph.nearest_neighbors(codes, BITS, 4))


def test_parties_see_what_the_protocol_shows_them():
    protocol = MaskedExchange()
    label(exchange=protocol.exchange)
    assert protocol.pairs == [(2, 2), (2, 5), (2, 9), (5, 5), (5, 9), (9, 9)]
    usable = ROWS["valid"] & ROWS["has_code"]
    valid = ROWS["valid"]
    for client in (2, 5, 9):
        own = CODES[usable & (ROWS["clients"] == client)]
        *codes, row_sums = protocol.seen[client]
        assert len(codes) == 4
        for some in codes:
            np.testing.assert_array_equal(some, own)
        assert row_sums.shape == (np.sum(valid & (ROWS["clients"] == client)), CLASSES)
    *blocks, first, second, third = protocol.seen["server"]
    assert [block.dtype for block in blocks] == 6 * [np.int32]
    owner = ROWS["clients"][np.argsort(~valid, kind="stable")][: valid.sum()]
    for client, message in zip((2, 5, 9), (first, second, third), strict=True):
        assert not message[owner == client].any() and np.mean(message[owner != client] == 0) < 0.01


@pytest.mark.thorough
def test_a_client_that_drops_out_before_the_sums_counts_without_its_labels():
    found = label(exchange=MaskedExchange(dropped=9).exchange)
    without = label(exchange=graph.IDEAL, labels=np.where(ROWS["clients"] == 9, -1, LABELS))
    others = ROWS["clients"] != 9
    # As many bits behind the point, so the same integers.
    np.testing.assert_allclose(found.scores[others], without.scores[others], atol=1e-6)
    np.testing.assert_array_equal(found.labels[others], without.labels[others])
    np.testing.assert_array_equal(found.scores[~others], 0)
    np.testing.assert_array_equal(
        found.labels[~others], np.where(ROWS["valid"], LABELS, -1)[~others]
    )


def test_a_client_that_drops_out_of_the_distances_is_alone():
    def distances(a, b, codes_a, codes_b):
        found = graph.IDEAL.distances(a, b, codes_a, codes_b)
        return np.full_like(found, BITS + 1) if 9 in (a, b) else found

    found = label(exchange=graph.Exchange(distances, graph.IDEAL.row_sums))
    without = label(exchange=graph.IDEAL, has_code=ROWS["has_code"] & (ROWS["clients"] != 9))
    jax.tree.map(np.testing.assert_array_equal, found, without)


def test_without_labels_nothing_is_summed():
    protocol = MaskedExchange()
    found = label(exchange=protocol.exchange, labels=np.full_like(LABELS, -1))
    assert protocol.calls == 0 and not found.valid.any() and not found.scores.any()


def test_worked_example_in_fixed_point():
    """XCLP section 9.2: E = round(2^f F) of both clients, here with the f that fits 2^32."""
    codes = reference.pack(reference.EXAMPLE_CODES)
    clients = np.repeat(np.int32([1, 2]), 3)
    settings = Settings(reference.EXAMPLE_BITS, 2, alpha=0.5)
    shares = {}

    def row_sums(given, owner):
        shares.update(given)
        return graph.IDEAL.row_sums(given, owner)

    exchange = graph.Exchange(graph.IDEAL.distances, row_sums)
    graph.xclp_from_codes(
        codes, reference.EXAMPLE_LABELS, 2, settings, clients=clients, exchange=exchange
    )
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
        (
            dict(distances=lambda *_: np.zeros((1, 1), np.int32)),
            "must be int32 of shape",
        ),
        (
            dict(distances=lambda a, b, one, other: np.zeros((len(one), len(other)))),
            "must be int32 of shape",
        ),
        (
            dict(distances=lambda *given: graph.IDEAL.distances(*given) + 2 * BITS),
            r"allowed: 0\.\.65",
        ),
        (
            dict(row_sums=lambda shares, clients: None),
            "row_sums returned None; it must be uint32 of shape",
        ),
    ],
)
def test_what_is_no_distance_or_sum_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        label(exchange=graph.IDEAL._replace(**change))


def test_an_exchange_needs_owners():
    with pytest.raises(ValueError, match="clients is None; an exchange"):
        label(exchange=graph.IDEAL, clients=None)
    with pytest.raises(ValueError, match="clients is None; an exchange"):
        graph.xclp(KEY, np.eye(3, dtype=np.float32), np.full(3, -1), 2, exchange=graph.IDEAL)
