"""Runs of tokens: what is read from a corpus, and where it goes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Runs of tokens in a corpus's token stream, each with its place in the caller's flat buffer.

    Document d occupies the token addresses [bounds[d], bounds[d + 1]), so a run may go over any number of
    documents. All three arrays have shape (runs,) and dtype int64; units are tokens. Checked once, here:
    ValueError where the arrays do not fit together or hold a negative number.
    """

    start: NDArray[np.int64]
    """Token address at which each run begins."""
    length: NDArray[np.int64]
    """Tokens of each run; 0 is allowed."""
    at: NDArray[np.int64]
    """Where each run begins in the buffer. Runs must not overlap there."""

    def __post_init__(self) -> None:
        start, length, at = self.start, self.length, self.at
        if not (start.dtype == length.dtype == at.dtype == np.int64):
            raise ValueError(f"spans are of int64, got {start.dtype}, {length.dtype}, {at.dtype}")
        if not (start.ndim == 1 and start.shape == length.shape == at.shape):
            raise ValueError(
                f"spans are three arrays of one length, got {start.shape}, {length.shape}, {at.shape}"
            )
        # The sign bit of the or is set where it is set in any of the three: one pass instead of three.
        if start.size and (start | length | at).min() < 0:
            raise ValueError("spans hold a negative start, length or place")

    def __len__(self) -> int:
        return int(self.start.size)
