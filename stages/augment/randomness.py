"""Randomness without state: a hash of where it is used.

Stored positions depend on every output for ever: the tests pin them. All arithmetic is on unsigned 64-bit integers, so
they are the same on every platform.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def words(seed: int, use: int, positions: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 random bits for each pair of a position and a place in its row, broadcast.

    `use` keeps apart what one augmentation draws for several ends: two uses have nothing to do with each other.
    `seed` and `use` lie in [0, 2**64).
    """
    key = _mixed(_mixed(np.array([seed], np.uint64) + _GOLDEN) + np.array([use], np.uint64))
    rows = _mixed(key + positions.astype(np.uint64) * _GOLDEN)
    return _mixed(rows + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def chance(drawn: NDArray[np.uint64], probability: float) -> NDArray[np.bool_]:
    """True with `probability` in [0, 1], which is exact at both ends."""
    return drawn >> np.uint64(11) < np.uint64(round(probability * (1 << 53)))


def below(drawn: NDArray[np.uint64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Uniform integers in [0, limit), broadcast; limits lie in [1, 2**31]."""
    return ((drawn >> np.uint64(32)) * limits.astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014). Arrays wrap silently where numpy's scalars would warn."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
