"""What every packing offers."""

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

    def __post_init__(self) -> None:
        if self.kept + self.dropped != self.tokens:
            raise ValueError(f"kept {self.kept} + dropped {self.dropped} is not tokens {self.tokens}")


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
        """The runs that fill a flat buffer of `len(samples) * seq_len` positions, row after row.

        Within a row runs follow one another from its first position on; what they leave at its end is padding.
        """
        ...

    def starts(self, samples: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where a document (or its continuation), or padding, begins in that flat buffer: ascending, every row's
        first position included. `bounds` are the corpus's."""
        ...

    def filled(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each row, shape (len(samples),), in [1, seq_len]; the positions after them are padding."""
        ...


def checked_seq_len(seq_len: int) -> int:
    """`seq_len` itself. ValueError: not in [2, 2**31)."""
    if not 2 <= seq_len < 1 << 31:
        raise ValueError(
            f"seq_len must be >= 2 (a label needs a token before it) and below 2**31, got {seq_len}"
        )
    return seq_len
