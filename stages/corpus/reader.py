"""What every corpus store offers to those who read it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stages.corpus.meta import CorpusMeta
from stages.corpus.spans import Spans

Tokens: TypeAlias = "NDArray[np.uint16] | NDArray[np.uint32]"


@runtime_checkable
class CorpusReader(Protocol):
    """A corpus of documents as one stream of token ids, wherever it is stored.

    Attributes are cheap however large the corpus is: `bounds` and `lengths` are memory-mapped.
    """

    @property
    def meta(self) -> CorpusMeta: ...

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Shape (documents + 1,): document d occupies the token addresses [bounds[d], bounds[d + 1])."""
        ...

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Shape (documents,): tokens of each document, its eos included."""
        ...

    def __len__(self) -> int:
        """Documents."""
        ...

    async def read(self, spans: Spans, out: NDArray[np.int64]) -> None:
        """Fill `out`, a flat buffer of the caller's, with the runs. Raises SpanError, CorpusClosed.

        Places of `out` that no run covers keep what they hold.
        """
        ...

    def close(self) -> None:
        """Let go of the store. May be called twice; every read after it raises CorpusClosed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class LocalCorpus(CorpusReader, Protocol):
    """A corpus whose store is mapped into memory."""

    def gather(self, spans: Spans, out: NDArray[np.int64]) -> None:
        """`read` without the event loop, for a caller that owns its thread. Safe from several threads."""
        ...

    def view(self, doc: int, start: int, stop: int) -> Tokens:
        """Tokens [start, stop) of document `doc`, read-only and without a copy; valid while the corpus is
        open."""
        ...

    def verify(self) -> None:
        """Read every byte and compare it with corpus.json. Raises CorpusDamaged, naming the file."""
        ...
