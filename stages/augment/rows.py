"""What an augmentation takes and gives. S: samples; T: positions of a row; U: positions of its labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stages import collate


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples on their way to a batch. Arrays are int64 and are not written to."""

    positions_S: NDArray[np.int64]
    """Where in the run each sample is consumed, over all ranks and epochs."""
    ids_ST: NDArray[np.int64]
    labels_SU: NDArray[np.int64]
    """Unshifted, U == T, -100 where nothing is trained; only SpanCorruption gives them another width."""
    starts: NDArray[np.int64]
    """Flat positions in `ids_ST` at which a document, its continuation or padding begins: ascending, each row's first
    included."""
    filled_S: NDArray[np.int64]
    """Tokens of each row; the positions after them are padding."""

    def tokens(self) -> NDArray[np.bool_]:
        """Shape (S, T): where a position holds a token, and no padding."""
        return ~collate.padding(self.filled_S, self.ids_ST.shape[1])

    def trainable(self) -> NDArray[np.bool_]:
        """Shape (S, T): where a token may be a target. That a document's first has no label does not count: it has
        none only because nothing before it predicts it."""
        trainable: NDArray[np.bool_] = self.labels_SU != collate.IGNORE
        trainable.reshape(-1)[self.starts] = True
        trainable &= self.tokens()
        return trainable


class Widths(NamedTuple):
    """Positions of a row, and of its labels."""

    ids: int
    labels: int


class Augmentation(Protocol):
    """Pure: rows do not depend on which others they come with, nor the result on anything but arguments and fields."""

    @property
    def identity(self) -> str:
        """Names all that outputs depend on beside the arguments, the algorithm included: a feed's state holds it, and
        a feed of another one is refused there."""
        ...

    def widths(self, seq_len: int) -> Widths:
        """What rows of `seq_len` become. ValueError: they cannot be augmented, and why."""
        ...

    def __call__(self, rows: Rows, seed: int) -> Rows:
        """The same samples, augmented. `rows` stays as it is; padding's labels are -100, by its place."""
        ...


def token_id(name: str, value: int) -> None:
    """ValueError: `value` is no token id."""
    if not 0 <= value < 1 << 31:
        raise ValueError(f"{name} must be a token id in [0, 2**31), got {value}")


def share(name: str, value: float) -> None:
    """ValueError: `value` is not in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}")
