"""The protocols as the paper prints them, bit by bit, and textbook cryptosystems: what the
package is compared with.
"""

import math

import numpy as np


def shade(v, u, modulus, r):
    """Section 6.1 for one pair of points, with transfers that are given away: (t, rho, tau)."""
    m0 = [(ri + a) % modulus for ri, a in zip(r, v, strict=True)]
    m1 = [(ri + 1 - a) % modulus for ri, a in zip(r, v, strict=True)]
    t = [(m0, m1)[b][i] for i, b in enumerate(u)]
    return m0, m1, t, sum(r) % modulus, sum(t) % modulus


class Textbook:
    """Paillier by its definition: lambda, mu and one power modulo N^2."""

    def __init__(self, p, q):
        self.n = p * q
        self.lam = math.lcm(p - 1, q - 1)
        self.mu = pow(self.log(pow(1 + self.n, self.lam, self.n**2)), -1, self.n)

    def log(self, value):
        return (value - 1) // self.n

    def encrypt(self, number, rho):
        return (1 + number * self.n) * pow(rho, self.n, self.n**2) % self.n**2

    def decrypt(self, ciphertext):
        return self.log(pow(ciphertext, self.lam, self.n**2)) * self.mu % self.n

    def distance(self, ciphertexts, u, r, rho):
        """Section 6.2 for one pair of points: the masked distance under encryption."""
        total = self.encrypt((r + sum(u)) % self.n, rho)
        for bit, ciphertext in zip(u, ciphertexts, strict=True):
            total = total * (pow(ciphertext, -1, self.n**2) if bit else ciphertext) % self.n**2
        return total


def row_sums(shares, clients, masks):
    """Section 6.3 on integers, with given masks that sum to 0: (uploads, what every client
    reads).
    """
    uploads = {}
    read = {}
    for client, share in shares.items():
        masked = share + masks[client]
        uploads[client] = np.where((clients == client)[:, None], 0, masked).astype(share.dtype)
    total = sum(uploads.values())
    for client, share in shares.items():
        own = clients == client
        read[client] = total[own] + share[own] + masks[client][own]
    return uploads, read
