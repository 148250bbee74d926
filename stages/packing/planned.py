"""A packing whose rows were planned ahead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages.corpus import Spans
from stages.packing.best_fit import Rows
from stages.packing.protocol import TokenAccount, checked_seq_len


class Planned:
    """See Packing. No token is dropped; a row is followed by padding where its pieces leave room."""

    def __init__(self, name: str, rows: Rows, tokens: int, seq_len: int) -> None:
        self.name = name
        self.seq_len = checked_seq_len(seq_len)
        self.samples = len(rows)
        padded = self.samples * seq_len - tokens
        self.account = TokenAccount(tokens=tokens, kept=tokens, dropped=0, padded=padded)
        self._rows = rows

    def spans(self, samples: NDArray[np.int64]) -> Spans:
        pieces, at, _ = self._pieces(samples)
        start = self._rows.start[pieces]
        return Spans(start=start, length=self._rows.length[pieces].astype(np.int64), at=at)

    def starts(self, samples: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        _, at, ends = self._pieces(samples)
        rows = np.arange(len(samples), dtype=np.int64)
        padded = ends < (rows + 1) * self.seq_len
        return np.sort(np.concatenate([at, ends[padded]]))

    def filled(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        _, _, ends = self._pieces(samples)
        return ends - np.arange(len(samples), dtype=np.int64) * self.seq_len

    def _pieces(
        self, samples: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Of these rows: the numbers of their pieces, where each lies in the flat buffer, where each row's last
        one ends."""
        first = self._rows.offset[samples]
        counts = self._rows.offset[samples + 1] - first
        last = np.cumsum(counts)
        pieces = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(first - last + counts, counts)
        ends = np.cumsum(self._rows.length[pieces], dtype=np.int64)
        begins = ends - self._rows.length[pieces]
        # Every row has a piece, so the first of each is there to measure the others from.
        shift = np.arange(len(samples), dtype=np.int64) * self.seq_len - begins[last - counts]
        return pieces, begins + np.repeat(shift, counts), ends[last - 1] + shift
