"""The lmdb store, reading: one read transaction, held as long as the corpus is open.

    runs ─► bounds: which documents ─► their values, where they lie in the map ─► one copy into the caller's buffer

The transaction sees the documents as they were when the corpus was opened, whatever is appended meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import lmdb
import numpy as np
from numpy.typing import NDArray

from stages.corpus.digest import ContentDigest
from stages.corpus.files import Indexed, verify_digest, verify_files, verify_index
from stages.corpus.lmdb_layout import DATABASES, DOCUMENTS, FILE, keys
from stages.corpus.meta import CorpusMeta
from stages.corpus.reader import Tokens
from stages.corpus.spans import Spans
from stages.errors import CorpusClosed, CorpusDamaged

GATHER_TOKENS = 256 << 10
"""What is joined at once: 512 KiB or 1 MiB, so that it stays in the cache until it is widened."""


class LmdbCorpus(Indexed):
    """See LocalCorpus."""

    def __init__(self, folder: Path, meta: CorpusMeta) -> None:
        super().__init__(folder, meta)
        self._ids = np.dtype(meta.dtype).newbyteorder("<")
        self._map: _Map | None = _opened(folder / FILE)

    def gather(self, spans: Spans, out: NDArray[np.int64]) -> None:
        map_ = self._open()
        self._check_buffer(out)
        if not len(spans):
            return
        stops = spans.start + spans.length
        self._check_reach(int(stops.max()), int((spans.at + spans.length).max()), out.size)
        at_once = max(1, GATHER_TOKENS * len(spans) // max(1, int(spans.length.sum())))
        for run in range(0, len(spans), at_once):
            some = slice(run, run + at_once)
            self._gather(map_, spans.start[some], spans.length[some], spans.at[some], out)

    async def read(self, spans: Spans, out: NDArray[np.int64]) -> None:
        # Not on the loop: a page that is not in memory would stop every other task until the disk has
        # answered.
        await asyncio.to_thread(self.gather, spans, out)

    def view(self, doc: int, start: int, stop: int) -> Tokens:
        map_ = self._open()
        self._check_view(doc, start, stop)
        data = self._value(map_, doc)
        view: Tokens = np.asarray(_Held(map_, np.frombuffer(data, self._ids)[start:stop]))
        return view

    def verify(self) -> None:
        map_ = self._open()
        verify_files(self._folder, self._meta)
        verify_index(self._folder, self._meta, self._bounds, self._lengths)
        digest = ContentDigest(self._meta.dtype)
        for doc in range(len(self)):
            digest.tokens(np.frombuffer(self._value(map_, doc), self._ids))
        digest.lengths(self._lengths)
        verify_digest(self._folder, self._meta, digest.hexdigest())

    def close(self) -> None:
        # Views that callers still hold keep the map alive: nothing dangles.
        self._map = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gather(
        self,
        map_: _Map,
        start: NDArray[np.int64],
        length: NDArray[np.int64],
        at: NDArray[np.int64],
        out: NDArray[np.int64],
    ) -> None:
        """Some runs: joined by one call, and widened into `out` by another where they lie end to end there."""
        stop = start + length
        first = self._bounds.searchsorted(start, side="right") - 1
        last = np.maximum(self._bounds.searchsorted(stop, side="left"), first)
        last[length == 0] = first[length == 0]
        count = last - first
        documents = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
        values = map_.values(documents)
        sizes = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
        if (wrong := sizes != self._lengths[documents] * np.int64(self._ids.itemsize)).any():
            raise self._damage(int(documents[wrong.argmax()]))
        heads = ((start - self._bounds[first]) * self._ids.itemsize).tolist()
        tails = ((self._bounds[last] - stop) * self._ids.itemsize).tolist()
        place = 0
        for documents_in_run, head, tail in zip(count.tolist(), heads, tails, strict=True):
            if documents_in_run:
                end = place + documents_in_run
                # The tail first: a run within one document is cut at both its ends.
                if tail:
                    values[end - 1] = values[end - 1][:-tail]
                if head:
                    values[place] = values[place][head:]
                place = end
        ids = np.frombuffer(b"".join(values), self._ids)
        ends = np.cumsum(length)
        if (at == at[0] + ends - length).all():
            out[at[0] : at[0] + ids.size] = ids
            return
        for to, size, end in zip(at.tolist(), length.tolist(), ends.tolist(), strict=True):
            out[to : to + size] = ids[end - size : end]

    def _open(self) -> _Map:
        """The map. Held by the caller, it outlives a close() in another thread."""
        if self._map is None:
            raise CorpusClosed(f"{self._folder}: the corpus is closed")
        return self._map

    def _value(self, map_: _Map, doc: int) -> memoryview:
        (value,) = map_.values(np.array([doc]))
        if len(value) != int(self._lengths[doc]) * self._ids.itemsize:
            raise self._damage(doc)
        return value

    def _damage(self, doc: int) -> CorpusDamaged:
        return CorpusDamaged(
            f"{self._folder / FILE}: document {doc} is not as long as {self._meta.lengths.name} says; pack again"
        )


class _Map:
    """An environment and its one read transaction, closed when nobody refers to it any more: neither corpora nor
    views.

    A forked child reads on in what it inherits: reading takes no lock, and the parent's transaction holds the pages.
    """

    def __init__(self, path: Path) -> None:
        self._pid = os.getpid()
        self._path = path
        try:
            self._env = _environment(path)
            self._transaction = self._env.begin(db=self._env.open_db(DOCUMENTS, create=False), buffers=True)
        except lmdb.Error as error:
            raise CorpusDamaged(
                f"{path}: cannot be opened as the corpus's documents ({error}); restore the file or pack again"
            ) from error
        self._lock = Lock()

    def values(self, documents: NDArray[np.int64]) -> list[memoryview]:
        """The documents' bytes, where they lie in the map. Raises CorpusDamaged."""
        wanted = keys(documents)
        try:
            # A transaction serves one thread at a time.
            with self._lock:
                get = self._transaction.get  # a third of what a cursor's getmulti takes
                found = [value for key in wanted if (value := get(key)) is not None]
        except lmdb.Error as error:
            raise CorpusDamaged(f"{self._path}: cannot be read ({error}); pack again") from error
        if lacking := len(wanted) - len(found):
            raise CorpusDamaged(
                f"{self._path}: lacks {lacking} of the documents {documents.min()} to {documents.max()}; pack again"
            )
        return found

    def __del__(self) -> None:
        env = getattr(self, "_env", None)
        if env is not None and self._pid == os.getpid():
            env.close()


class _Held:
    """An array over a map that must live as long as the array: numpy keeps the object that an interface came from."""

    def __init__(self, map_: _Map, array: Tokens) -> None:
        self._map = map_
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, True)}


_MAPS: weakref.WeakValueDictionary[str, _Map] = weakref.WeakValueDictionary()
_MAPS_LOCK = Lock()


def _opened(path: Path) -> _Map:
    """The process's one map of this file: the library refuses a second. Raises CorpusDamaged."""
    with _MAPS_LOCK:
        place = os.path.realpath(path)
        map_ = _MAPS.get(place)
        if map_ is None:
            map_ = _MAPS[place] = _Map(path)
        return map_


def _environment(path: Path) -> lmdb.Environment:
    def opened(lock: bool) -> lmdb.Environment:
        return lmdb.open(
            str(path),
            subdir=False,
            readonly=True,
            create=False,
            lock=lock,
            readahead=False,
            max_dbs=DATABASES,
        )

    try:
        return opened(lock=True)
    except (lmdb.ReadonlyError, lmdb.LockError):
        # A place where nothing can be written has no writer either whom the lock would tell of this reader.
        return opened(lock=False)
