"""The packing that fills every position: documents end to end, cut wherever a row ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages.corpus import Spans
from stages.packing.protocol import TokenAccount, checked_seq_len


class Wrapped:
    """Documents end to end, cut every `seq_len` tokens; windows are disjoint.

    The last `tokens % seq_len` tokens of an epoch fill no window and are dropped (and counted as such): every
    sample is full, so there is no padding at all.
    """

    name = "wrapped"

    def __init__(self, tokens: int, seq_len: int) -> None:
        self.seq_len = checked_seq_len(seq_len)
        self.samples = tokens // seq_len
        kept = self.samples * seq_len
        self.account = TokenAccount(tokens=tokens, kept=kept, dropped=tokens - kept, padded=0)

    def spans(self, samples: NDArray[np.int64]) -> Spans:
        rows = len(samples)
        return Spans(
            start=samples * self.seq_len,
            length=np.full(rows, self.seq_len, np.int64),
            at=np.arange(rows, dtype=np.int64) * self.seq_len,
        )

    def starts(self, samples: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        first = samples * self.seq_len
        # Document bounds strictly inside each window: bounds[low:high] of each row.
        low = np.searchsorted(bounds, first, side="right")
        counts = np.searchsorted(bounds, first + self.seq_len, side="left") - low
        ends = np.cumsum(counts)
        rows = np.arange(len(samples), dtype=np.int64)
        row = np.repeat(rows, counts)
        nth = np.arange(row.size, dtype=np.int64)
        starts = np.empty(rows.size + row.size, np.int64)
        starts[rows + ends - counts] = rows * self.seq_len
        inside = bounds[nth + np.repeat(low - ends + counts, counts)]
        starts[nth + row + 1] = inside + np.repeat(rows * self.seq_len - first, counts)
        # An empty document (two equal bounds) begins nowhere twice.
        new = np.diff(starts) > 0
        return starts if new.all() else starts[np.concatenate([[True], new])]

    def filled(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(samples), self.seq_len, np.int64)
