"""Packing: which runs of the token stream make up a sample.

A packing is an index over a corpus, never a copy of it: another `seq_len` is another packing of the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stages.corpus import Spans


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """Where every token of one epoch went: `kept + dropped == tokens`; `padded` positions hold no token."""

    tokens: int
    kept: int
    dropped: int
    padded: int


class Packing(Protocol):
    """Samples of `seq_len` positions each, numbered [0, samples)."""

    @property
    def name(self) -> str: ...
    @property
    def seq_len(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def account(self) -> TokenAccount: ...

    def spans(self, samples: NDArray[np.int64]) -> Spans:
        """The runs that fill a flat buffer of `len(samples) * seq_len` positions, row after row."""
        ...

    def starts(self, samples: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where a document (or its continuation) begins in that flat buffer, ascending; every row's 0 included."""
        ...


class Wrapped:
    """Documents end to end, cut every `seq_len` tokens; windows are disjoint.

    The last `tokens % seq_len` tokens of an epoch fill no window and are dropped (and counted as such): every
    sample is full, so there is no padding at all.
    """

    name = "wrapped"

    def __init__(self, tokens: int, seq_len: int) -> None:
        if seq_len < 2:
            raise ValueError(f"seq_len must be >= 2 (a label needs a token before it), got {seq_len}")
        self.seq_len = seq_len
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
        high = np.searchsorted(bounds, first + self.seq_len, side="left")
        counts = high - low
        rows = np.repeat(np.arange(len(samples)), counts)
        nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        inside = bounds[low[rows] + nth] - first[rows] + rows * self.seq_len
        # unique: sorts, and an empty document (two equal bounds) begins nowhere twice.
        return np.unique(np.concatenate([np.arange(len(samples)) * self.seq_len, inside])).astype(np.int64)
