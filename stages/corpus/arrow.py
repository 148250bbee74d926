"""The arrow store, reading: Arrow IPC files, mapped into memory.

A shard is mapped whole and seen as one array of tokens. Each record batch's values lie somewhere in it,
contiguous:

    shard file   | header | offsets | values of batch 0 ...... | offsets | values of batch 1 ...... | footer |
    token address                     first[0]                            first[1]
    position     = token address + shift[batch]

so a run of tokens within a batch is one slice, whatever documents it goes over, and many runs of one length
are one fancy index over all the overlapping windows of the shard.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from stages.corpus.arrow_shard import map_shard
from stages.corpus.digest import ContentDigest
from stages.corpus.files import Indexed, verify_digest, verify_files, verify_index
from stages.corpus.meta import CorpusMeta
from stages.corpus.reader import Tokens
from stages.corpus.spans import Spans
from stages.errors import CorpusClosed, CorpusDamaged

WINDOW_TOKENS = 1 << 15
"""Up to this length runs are taken by one fancy index; longer ones cost more in copying twice than in
calls."""
WINDOW_BYTES = 256 << 10
"""What one fancy index takes at once: its intermediate copy stays in the cache."""
FEW_RUNS = 24
"""Up to this many runs, a loop over them costs less than the dozen array operations that would replace it."""


@dataclass(frozen=True, slots=True)
class _Batches:
    """Record batches of all shards, in order; arrays of shape (batches,), `first` with the corpus's end in
    addition."""

    first: NDArray[np.int64]
    shift: NDArray[np.int64]
    shard: NDArray[np.int64]


class ArrowCorpus(Indexed):
    """See LocalCorpus."""

    def __init__(self, folder: Path, meta: CorpusMeta) -> None:
        super().__init__(folder, meta)
        self._shards, self._batches = self._open_shards()
        self._firsts: list[int] = self._batches.first.tolist()
        self._closed = False

    def gather(self, spans: Spans, out: NDArray[np.int64]) -> None:
        shards = self._open()
        self._check_buffer(out)
        if len(spans) <= FEW_RUNS:
            self._gather_each(shards, spans, out)
            return
        self._check_reach(
            int((spans.start + spans.length).max()), int((spans.at + spans.length).max()), out.size
        )
        batch = self._batches.first.searchsorted(spans.start, side="right") - 1
        # An address at the corpus's end belongs to no batch: only an empty run may begin there.
        batch.clip(0, len(self._batches.shift) - 1, out=batch)
        if (spans.start + spans.length > self._batches.first[batch + 1]).any():
            self._gather_each(shards, spans, out)
            return
        position = spans.start + self._batches.shift[batch]
        shard = self._batches.shard[batch]
        if not _gather_windows(shards, spans, position, shard, out):
            for s, p, length, at in zip(
                shard.tolist(), position.tolist(), spans.length.tolist(), spans.at.tolist(), strict=True
            ):
                out[at : at + length] = shards[s][p : p + length]

    async def read(self, spans: Spans, out: NDArray[np.int64]) -> None:
        # Not on the loop: a page that is not in memory would stop every other task until the disk has
        # answered.
        await asyncio.to_thread(self.gather, spans, out)

    def view(self, doc: int, start: int, stop: int) -> Tokens:
        shards = self._open()
        self._check_view(doc, start, stop)
        first = int(self._bounds[doc])
        batch = min(bisect_right(self._firsts, first), len(self._batches.shift)) - 1
        position = first + int(self._batches.shift[batch])
        return shards[int(self._batches.shard[batch])][position + start : position + stop]

    def verify(self) -> None:
        shards = self._open()
        verify_files(self._folder, self._meta)
        self._verify_content(shards)

    def close(self) -> None:
        # Views that callers still hold keep their maps alive: nothing dangles.
        self._closed = True
        self._shards = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_shards(self) -> tuple[tuple[Tokens, ...], _Batches]:
        shards: list[Tokens] = []
        shift: list[int] = []
        index: list[int] = []
        first = [0]
        documents = 0
        for number, shard in enumerate(self._meta.shards):
            tokens, batches = map_shard(self._folder, shard, self._meta.dtype)
            shards.append(tokens)
            for rows, offset, count in batches:
                shift.append(offset - first[-1])
                index.append(number)
                first.append(first[-1] + count)
                documents += rows
                if int(self._bounds[documents]) != first[-1]:
                    raise CorpusDamaged(
                        f"{self._folder / shard.file.name}: document {documents} begins at token "
                        f"{first[-1]}, {self._meta.bounds.name} says {int(self._bounds[documents])}; pack again"
                    )
        return tuple(shards), _Batches(*(np.array(part, dtype=np.int64) for part in (first, shift, index)))

    def _open(self) -> tuple[Tokens, ...]:
        """The shards. Held by the caller, they outlive a close() in another thread."""
        if self._closed:
            raise CorpusClosed(f"{self._folder}: the corpus is closed")
        return self._shards

    def _gather_each(self, shards: tuple[Tokens, ...], spans: Spans, out: NDArray[np.int64]) -> None:
        """Any runs, one by one, cut where record batches meet."""
        firsts, shifts, shard = self._firsts, self._batches.shift, self._batches.shard
        for start, length, at in zip(
            spans.start.tolist(), spans.length.tolist(), spans.at.tolist(), strict=True
        ):
            address, place, stop = start, at, start + length
            self._check_reach(stop, at + length, out.size)
            batch = bisect_right(firsts, start) - 1
            while address < stop:
                end = min(stop, firsts[batch + 1])
                shift = int(shifts[batch])
                out[place : place + end - address] = shards[int(shard[batch])][address + shift : end + shift]
                place, address, batch = place + end - address, end, batch + 1

    def _verify_content(self, shards: tuple[Tokens, ...]) -> None:
        digest = ContentDigest(self._meta.dtype)
        verify_index(self._folder, self._meta, self._bounds, self._lengths)
        for batch, shift in enumerate(self._batches.shift.tolist()):
            tokens = shards[int(self._batches.shard[batch])]
            digest.tokens(tokens[self._firsts[batch] + shift : self._firsts[batch + 1] + shift])
        digest.lengths(self._lengths)
        verify_digest(self._folder, self._meta, digest.hexdigest())


def _gather_windows(
    shards: tuple[Tokens, ...],
    spans: Spans,
    position: NDArray[np.int64],
    shard: NDArray[np.int64],
    out: NDArray[np.int64],
) -> bool:
    """Take the runs by fancy index if they are many, of one length, of one shard and end to end in `out`."""
    runs, length = len(spans), int(spans.length[0])
    if not 0 < length <= WINDOW_TOKENS:
        return False
    number, at = int(shard[0]), int(spans.at[0])
    if (spans.length != length).any() or (shard != number).any():
        return False
    if (np.diff(spans.at) != length).any():
        return False
    tokens = shards[number]
    step = tokens.itemsize
    windows = as_strided(
        tokens, shape=(tokens.size - length + 1, length), strides=(step, step), writeable=False
    )
    rows = out[at : at + runs * length].reshape(runs, length)
    at_once = max(1, WINDOW_BYTES // (length * step))
    for row in range(0, runs, at_once):
        rows[row : row + at_once] = windows[position[row : row + at_once]]
    return True
