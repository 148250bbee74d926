"""Which documents have been seen before, by the hash of their text: 32 to 64 bytes of memory for each."""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

_LOAD = 2
"""Slots for each hash at least: at half full a look-up takes one and a half probes."""


class Seen:
    """A set of 128-bit hashes, many at once: an open-addressed table in two columns of a numpy array."""

    def __init__(self) -> None:
        self._table = np.zeros((1 << 10, 2), dtype=np.uint64)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def first(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Of hashes of shape (documents, 2): which are here for the first time, in their order. All are seen then."""
        new = np.zeros(len(hashes), dtype=np.bool_)
        if not len(hashes):
            return new
        hashes = hashes.copy()
        # A slot of zeros is an empty one.
        hashes[(hashes == 0).all(axis=1), 1] = 1
        _, alone = np.unique(hashes, axis=0, return_index=True)
        while _LOAD * (self._used + alone.size) > len(self._table):
            self._grow()
        new[alone] = self._add(hashes[alone])
        self._used += int(new.sum())
        return new

    def _grow(self) -> None:
        old = self._table[self._table.any(axis=1)]
        self._table = np.zeros((2 * len(self._table), 2), dtype=np.uint64)
        self._add(old)

    def _add(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Add hashes that differ from each other; which of them were not there."""
        table, mask = self._table, np.uint64(len(self._table) - 1)
        new = np.zeros(len(hashes), dtype=np.bool_)
        left = np.arange(len(hashes))
        slot = (hashes[:, 0] & mask).astype(np.int64)
        while left.size:
            wanted, at = hashes[left], slot[left]
            empty = ~table[at].any(axis=1)
            # Of several that want one empty slot the last is written; the others find it taken.
            table[at[empty]] = wanted[empty]
            here = (table[at] == wanted).all(axis=1)
            new[left[here & empty]] = True
            left = left[~here]
            slot[left] = (slot[left] + 1) & int(mask)
        return new


def text_hashes(texts: tuple[str, ...]) -> NDArray[np.uint64]:
    """blake3 of each text's UTF-8, its first 128 bits as two little-endian numbers; shape (texts, 2)."""
    data = b"".join(blake3(text.encode()).digest(length=16) for text in texts)
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2)


def held_out(hashes: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Which documents a split of this share takes: by their text alone, so that it is the same one in any corpus."""
    return hashes[:, 1] < np.uint64(min(int(share * 2.0**64), 2**64 - 1))
