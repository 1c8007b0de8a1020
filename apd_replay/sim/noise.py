"""Service times vary from turn to turn: a factor keyed by (seed, session, turn), so that experiments with one seed are paired."""

from __future__ import annotations

from hashlib import blake2b
from math import exp
from statistics import NormalDist

_inverse = NormalDist().inv_cdf


class Noise:
    """Log-normal factors with the given sigma; 0 switches it off."""

    __slots__ = ("_seed", "_sigma")

    def __init__(self, seed: int, sigma: float) -> None:
        self._seed, self._sigma = seed, sigma

    def factor(self, session: str, turn: int) -> float:
        if not self._sigma:
            return 1.0
        digest = blake2b(f"{self._seed}:{session}:{turn}".encode(), digest_size=6).digest()
        return exp(self._sigma * _inverse((int.from_bytes(digest) + 0.5) / 2**48))
