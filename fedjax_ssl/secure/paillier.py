"""Paillier's cryptosystem: sums of numbers under encryption.

With gmpy2 (the extra `secure-he`) where it is installed, else with Python's own integers, about eight times slower. Not
constant-time.

References:
    Paillier, Public-key cryptosystems based on composite degree residuosity classes, Eurocrypt 1999.
"""

import importlib
import math
import secrets
from collections.abc import Iterable
from types import ModuleType
from typing import Any

_ROUNDS = 32  # of Miller and Rabin's test; a composite passes with probability below 2^-64
_SMALL_PRIMES = [n for n in range(3, 2000) if all(n % d for d in range(2, int(n**0.5) + 1))]

gmpy2: ModuleType | None
try:
    gmpy2 = importlib.import_module("gmpy2")
except ImportError:  # Python's own integers will do
    gmpy2 = None


def _integer(value: int) -> Any:
    return value if gmpy2 is None else gmpy2.mpz(value)


def _power(base: Any, exponent: Any, modulus: Any) -> Any:
    return pow(base, exponent, modulus) if gmpy2 is None else gmpy2.powmod(base, exponent, modulus)


def _inverse(value: Any, modulus: Any) -> Any:
    return pow(value, -1, modulus) if gmpy2 is None else gmpy2.invert(value, modulus)


class PublicKey:
    """Whoever has it can encrypt, add, and re-randomize. Args: the modulus N, a product of two primes."""

    def __init__(self, modulus: int):
        self.modulus = _integer(modulus)
        self.squared = self.modulus * self.modulus
        self.num_bytes = -(-int(modulus).bit_length() // 8)

    def blind(self) -> Any:
        """A fresh N-th power: an encryption of 0, which makes of a ciphertext another one of the same number."""
        return _power(self._unit(), self.modulus, self.squared)

    def encrypt(self, number: int) -> int:
        """A ciphertext of a number modulo N."""
        return int((1 + number % self.modulus * self.modulus) * self.blind() % self.squared)

    def add(self, ciphertexts: Iterable[Any]) -> Any:
        """A ciphertext of the sum, which everybody can recognize who knows the summands."""
        total = _integer(1)
        for ciphertext in ciphertexts:
            total = total * ciphertext % self.squared
        return total

    def times(self, ciphertext: Any, factor: int) -> Any:
        """A ciphertext of `factor` times the number."""
        some = _inverse(ciphertext, self.squared) if factor < 0 else ciphertext
        return _power(some, abs(factor), self.squared)

    def plus(self, ciphertext: Any, number: int) -> Any:
        """A ciphertext of the number plus another one, re-randomized: nobody can tell what it was made of."""
        return ciphertext * (1 + number % self.modulus * self.modulus) % self.squared * self.blind() % self.squared

    def is_ciphertext(self, value: int) -> bool:
        """Whether a number can be a ciphertext: below N^2, and prime to N."""
        if not 0 < value < self.squared:
            return False
        return math.gcd(int(value), int(self.modulus)) == 1

    def _unit(self) -> Any:
        return _integer(1 + secrets.randbelow(int(self.modulus) - 1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self.modulus == other.modulus

    def __repr__(self) -> str:
        return f"PublicKey({8 * self.num_bytes} bits)"


class SecretKey:
    """The key pair.

    Args:
        bits: of the modulus; 2048 is today's least.
        primes: given ones, for tests.

    Raises:
        ValueError: primes with which decryption is not unique.
    """

    def __init__(self, bits: int = 2048, primes: tuple[int, int] | None = None):
        p, q = primes or _two_primes(bits)
        phi = (p - 1) * (q - 1)
        if p == q or math.gcd(p * q, phi) != 1:
            raise ValueError("two primes whose product is not prime to (p - 1) (q - 1) make no Paillier key")
        self.public = PublicKey(p * q)
        self._p, self._q = _integer(p), _integer(q)
        self._p2, self._q2 = self._p**2, self._q**2
        self._p2_inverse, self._p_inverse = _inverse(self._p2, self._q2), _inverse(self._p, self._q)
        self._hp = _inverse(self._log(1 + self.public.modulus, self._p, self._p2), self._p)
        self._hq = _inverse(self._log(1 + self.public.modulus, self._q, self._q2), self._q)

    @staticmethod
    def _log(value: Any, prime: Any, squared: Any) -> Any:
        return (_power(value, prime - 1, squared) - 1) // prime

    def encrypt(self, number: int) -> int:
        """As the public key, in half the time: powers modulo p^2 and q^2, put together."""
        modulus, unit = self.public.modulus, self.public._unit()
        at_p = _power(unit % self._p2, modulus % (self._p * (self._p - 1)), self._p2)
        at_q = _power(unit % self._q2, modulus % (self._q * (self._q - 1)), self._q2)
        blind = at_p + self._p2 * ((at_q - at_p) * self._p2_inverse % self._q2)
        return int((1 + number % modulus * modulus) * blind % self.public.squared)

    def decrypt(self, ciphertext: int) -> int:
        """The number, in 0..N - 1."""
        value = _integer(ciphertext)
        at_p = self._log(value % self._p2, self._p, self._p2) * self._hp % self._p
        at_q = self._log(value % self._q2, self._q, self._q2) * self._hq % self._q
        return int(at_p + self._p * ((at_q - at_p) * self._p_inverse % self._q))

    def __repr__(self) -> str:
        return "SecretKey(...)"


def _two_primes(bits: int) -> tuple[int, int]:
    """Different primes of half the bits each; the top two bits are set, so the product has exactly `bits`."""
    if bits < 64 or bits % 16:
        raise ValueError(f"key_bits is {bits}; it must be a multiple of 16 and at least 64")
    p = _prime(bits // 2)
    q = _prime(bits // 2)
    return (p, q) if p != q else _two_primes(bits)


def _prime(bits: int) -> int:
    while True:
        candidate = secrets.randbits(bits) | (3 << (bits - 2)) | 1
        if all(candidate % prime for prime in _SMALL_PRIMES) and _is_prime(candidate):
            return candidate


def _is_prime(number: int) -> bool:
    odd = number - 1
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    for _ in range(_ROUNDS):
        power = int(_power(_integer(2 + secrets.randbelow(number - 3)), odd, number))
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True
