"""Random choices that depend only on the seed and on the thing chosen, never on earlier choices."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence


def hash_key(*key: object) -> int:
    """Return 64 bits that depend only on the key."""
    text = "/".join(map(str, key))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class KeyedRandom(random.Random):
    """A random generator seeded with a key.

    Its methods use only `random()`: Python does not guarantee the sequence of any other method
    between versions.
    """

    def __init__(self, *key: object) -> None:
        super().__init__(hash_key(*key))

    def below(self, limit: int) -> int:
        """Return an integer in range(limit)."""
        return int(self.random() * limit)

    def pick(self, items: Sequence[str]) -> str:
        """Return one of the items."""
        return items[int(self.random() * len(items))]

    def shuffled(self, items: Iterable[str]) -> list[str]:
        """Return the items in random order."""
        # Sorted by random numbers, because `random.shuffle` may change between versions.
        keyed = sorted((self.random(), item) for item in items)
        return [item for _, item in keyed]


class Permutation:
    """A keyed bijection of range(n), computed for one element at a time.

    `x * odd + c` and `x ^ (x >> half)` permute the next power of two. They are repeated until
    the value is below n, which restricts the bijection to range(n) ("cycle walking", Black and
    Rogaway 2002, "Ciphers with Arbitrary Finite Domains", section 3).
    """

    def __init__(self, n: int, *key: object) -> None:
        num_bits = max(2, (n - 1).bit_length())
        self.n, self.mask, self.half = n, (1 << num_bits) - 1, num_bits // 2
        self.rounds: list[tuple[int, int]] = []
        for number in range(3):
            factor = hash_key(*key, number, "factor") | 1  # odd, so it has an inverse
            self.rounds.append((factor, hash_key(*key, number, "term")))

    def __call__(self, x: int) -> int:
        """Return the image of x."""
        while True:
            for factor, term in self.rounds:
                x = (x * factor + term) & self.mask
                x ^= x >> self.half
            if x < self.n:
                return x
