"""Short vectors of integer lattices, for attacks."""

import numpy as np


def reduced(basis):
    """A reduced basis, of which the first vectors are short; rows of Python integers.

    References:
        Lenstra, Lenstra, Lovasz, 1982, with delta = 3/4, in the form without fractions of Cohen, A course in
        computational algebraic number theory, algorithm 2.6.7.
    """
    rows = [np.array(row, object) for row in basis]
    count = len(rows)
    d, scaled = [1] + [0] * count, [[0] * count for _ in rows]  # d[i + 1]: determinants; scaled[i][j] = d[j + 1] mu_ij

    def project(k):
        for j in range(k + 1):
            value = int(rows[k] @ rows[j])
            for i in range(j):
                value = (d[i + 1] * value - scaled[k][i] * scaled[j][i]) // d[i]
            if j < k:
                scaled[k][j] = value
            else:
                d[k + 1] = value

    def shorten(k, j):
        factor = (2 * scaled[k][j] + d[j + 1]) // (2 * d[j + 1])
        if factor:
            rows[k] = rows[k] - factor * rows[j]
            scaled[k][j] -= factor * d[j + 1]
            for i in range(j):
                scaled[k][i] -= factor * scaled[j][i]

    def swap(k, last):
        rows[k], rows[k - 1] = rows[k - 1], rows[k]
        scaled[k][: k - 1], scaled[k - 1][: k - 1] = scaled[k - 1][: k - 1], scaled[k][: k - 1]
        mu = scaled[k][k - 1]
        new = (d[k - 1] * d[k + 1] + mu * mu) // d[k]
        for i in range(k + 1, last + 1):
            value = scaled[i][k]
            scaled[i][k] = (d[k + 1] * scaled[i][k - 1] - mu * value) // d[k]
            scaled[i][k - 1] = (new * value + mu * scaled[i][k]) // d[k + 1]
        d[k] = new

    project(0)
    k, last = 1, 0
    while k < count:
        if k > last:
            last = k
            project(k)
        shorten(k, k - 1)
        if 4 * (d[k + 1] * d[k - 1] + scaled[k][k - 1] ** 2) < 3 * d[k] ** 2:
            swap(k, last)
            k = max(1, k - 1)
        else:
            for j in range(k - 2, -1, -1):
                shorten(k, j)
            k += 1
    return [row.tolist() for row in rows]
