"""What every corpus store offers to those who write it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pipeline import State
from stages.corpus.meta import CorpusMeta, Dtype, FileMeta, ShardMeta, StoreName
from stages.corpus.reader import Tokens


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer has made, durable but for the folder's names."""

    documents: int
    tokens: int
    digest: str
    shards: tuple[ShardMeta, ...]
    bounds: FileMeta
    lengths: FileMeta


@dataclass(frozen=True, slots=True)
class Saved:
    """How far a killed writer had come."""

    mark: State
    """What its store needs to take the writing up again."""
    progress: State
    """What its caller recorded with it."""


class CorpusWriter(Protocol):
    """Writes one corpus's store. Not safe from several threads.

    A context manager: leaving it closes every file, finished or not. Every method may raise OutputError, OutputFull.
    """

    documents: int
    tokens: int

    def append(self, tokens: Tokens, lengths: NDArray[np.uint32]) -> None:
        """Add documents: their ids end to end, shape (sum of lengths,), and their lengths, shape
        (documents,). ValueError where the two do not fit together."""
        ...

    def mark(self) -> State:
        """Make durable what has been appended, and say how to come back to this moment: for `Store.writer`."""
        ...

    def save(self, progress: State) -> None:
        """`mark`, with the caller's progress recorded beside the documents: both count, or neither does."""
        ...

    def finish(self) -> Written:
        """Write what is left and the index, and sync every file. The folder itself is for the caller to sync."""
        ...

    def close(self) -> None:
        """Close every file, finished or not. May be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Store(Protocol):
    """A kind of store, for those who write it."""

    @property
    def name(self) -> StoreName: ...

    def writer(self, folder: Path, dtype: Dtype, at: State | None = None) -> CorpusWriter:
        """A writer into an empty folder, or one that goes on from a mark. Raises NotResumable."""
        ...

    def appending(self, folder: Path, meta: CorpusMeta, lengths: NDArray[np.uint32]) -> CorpusWriter:
        """A writer that goes on after the last document of the finished corpus in `folder`, of these lengths; until
        its corpus.json is replaced, the corpus stays readable as it is. Raises NotResumable."""
        ...

    def saved(self, folder: Path) -> Saved | None:
        """What a killed writer's last `save` recorded."""
        ...

    def owns(self, name: str) -> bool:
        """Whether a file of this name is one of the store's."""
        ...

    def keeps(self, name: str) -> bool:
        """Whether a finished corpus holds a file of this name though corpus.json does not list it."""
        ...
