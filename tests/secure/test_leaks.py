"""What XCLP shows by design, whatever protocols it runs on: three attacks that work, so that the
claims stay honest.

Points are Gaussian, in the package's own codes, distances and graph. Numbers are in docs/secure.md.
"""

import numpy as np
from scipy import optimize


def codes_of(points, num_bits, random):
    return (points @ random.standard_normal((points.shape[1], num_bits)) >= 0).astype(np.int8)


def distances_of(codes, others):
    signs = 1 - 2 * codes.astype(np.float64), 1 - 2 * others.astype(np.float64)
    return (codes.shape[1] - signs[0] @ signs[1].T) / 2


def normalized(points):
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def directions_error(dimension, num_bits, num_known, seed=0):
    """Mean cosine between the true directions and those found from H and one client's points."""
    random = np.random.default_rng(seed)
    known, hidden = (normalized(random.standard_normal((n, dimension))) for n in (num_known, 100))
    everything = codes_of(np.concatenate([known, hidden]), num_bits, random)
    cosines = np.cos(
        np.pi * distances_of(everything[num_known:], everything[:num_known]) / num_bits
    )
    found = normalized(np.linalg.lstsq(known, cosines.T, rcond=None)[0].T)
    return float(np.mean(np.sum(found * hidden, axis=1)))


def test_known_leak_directions_of_all_points():
    """The server and one client with at least as many points as dimensions know everybody's
    feature directions.
    """
    assert directions_error(32, 4096, 64) > 0.97
    assert directions_error(64, 4096, 128) > 0.96
    assert directions_error(32, 256, 64) > 0.85  # shorter codes blur, and do not stop it
    assert directions_error(64, 4096, 32) < 0.75  # fewer points than dimensions do


def bits_found(num_bits, num_known, seed=0):
    """Share of the bits of another client's point that follow from its distances to a client's
    known codes.
    """
    random = np.random.default_rng(seed)
    known = random.integers(0, 2, (num_known, num_bits))
    hidden = random.integers(0, 2, (6, num_bits))
    matrix = 1 - 2 * known
    right = []
    for code in hidden:
        distance = np.sum(known != code, axis=1)
        # distance = sum of known + sum over l of (1 - 2 known_l) code_l
        solution = optimize.lsq_linear(matrix, distance - known.sum(axis=1), (0, 1), tol=1e-8).x
        right.append(np.mean((solution > 0.5) == code))
    return float(np.mean(right))


def test_known_leak_bits_of_all_codes():
    """The server and one client with about 0.7 L points know every bit of everybody's codes."""
    assert bits_found(64, 48) > 0.98
    assert 0.6 < bits_found(64, 16) < 0.95
    assert bits_found(64, 1) < 0.65


def influence(codes, num_neighbors=10, alpha=0.99):
    """S, as the server works it out."""
    similarity = np.cos(np.pi * distances_of(codes, codes) / codes.shape[1])
    np.fill_diagonal(similarity, -1)
    kept = np.zeros_like(similarity)
    nearest = np.argsort(-similarity, axis=1)[:, :num_neighbors]
    np.put_along_axis(kept, nearest, np.maximum(np.take_along_axis(similarity, nearest, 1), 0), 1)
    weight = kept + kept.T
    degree = weight.sum(axis=1)
    weight /= np.sqrt(np.outer(degree, degree))
    return np.linalg.inv(np.eye(len(codes)) - alpha * weight)


def labels_read(num_own, fraction_bits=None, seed=0):
    """(labelled points of others that a client names rightly, wrongly, all of them): from S and
    F of its own rows.
    """
    random = np.random.default_rng(seed)
    count = 300
    classes = 3
    others = 20
    centers = 2 * random.standard_normal((classes, 16))
    truth = random.integers(0, classes, count)
    codes = codes_of(centers[truth] + random.standard_normal((count, 16)), 1024, random)
    own = np.arange(100)
    labelled_own = own[:num_own]
    labelled_other = random.choice(np.arange(100, count), others, replace=False)
    matrix = np.zeros((count, classes))
    matrix[[*labelled_own, *labelled_other], truth[[*labelled_own, *labelled_other]]] = 1
    weights = influence(codes)
    scores = weights @ matrix  # of which the client sees its own rows
    if fraction_bits is not None:
        scores = np.rint(scores * 2.0**fraction_bits) / 2.0**fraction_bits
    # S is symmetric: its columns of labelled points are rows of S too, with the weights of
    # everybody's points.
    rows = labelled_own
    rest = np.arange(100, count)
    remainder = scores[rows] - weights[np.ix_(rows, labelled_own)] @ matrix[labelled_own]
    found = np.stack(
        [optimize.nnls(weights[np.ix_(rows, rest)], remainder[:, c])[0] for c in range(classes)], 1
    )
    best = rest[np.argsort(-found.max(axis=1))[:others]]
    named = np.argmax(found[best - 100], axis=1)
    right = np.isin(best, labelled_other) & (named == truth[best])
    return int(right.sum()), int((~right).sum()), others


def test_known_leak_labels_of_other_clients():
    """One curious client with many labels reads whose points are labelled, and how, without
    anybody's help.
    """
    right, wrong, total = labels_read(74)
    assert right >= 0.7 * total, (right, wrong)
    few, _, _ = labels_read(8)
    assert few < right
    rounded, _, _ = labels_read(74, fraction_bits=16)  # what fixed point does anyway
    assert rounded >= 0.6 * total
