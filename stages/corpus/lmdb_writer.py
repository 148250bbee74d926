"""The lmdb store, writing: documents and the progress of whoever writes them, in one transaction.

append ─► pending (in memory) ─► save ─► one transaction: documents, progress ─► finish: lengths.arrow, bounds.arrow
   └────► lengths.spool
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import lmdb
import numpy as np
from numpy.typing import NDArray

from pipeline import State
from stages.corpus.arrow_layout import index_generation
from stages.corpus.digest import ContentDigest
from stages.corpus.growing import NotResumable
from stages.corpus.index_writer import BOUNDS_SPOOL, LENGTHS_SPOOL, IndexWriter
from stages.corpus.lmdb_layout import DATABASES, DOCUMENTS, FILE, LOCK_FILE, PROGRESS, PROGRESS_KEY, key
from stages.corpus.meta import CorpusMeta, Dtype, StoreName
from stages.corpus.reader import Tokens
from stages.corpus.writer import Saved, Written
from stages.errors import OutputBusy, OutputError, OutputFull
from stages.storage import writing

MAP_BYTES = 64 << 20
"""The map's first size; it doubles whenever a transaction does not fit. The file grows as it fills."""
PENDING_BYTES = 64 << 20
"""Documents that wait for the next transaction are written at this size, without progress: memory is bounded."""
_AT_ONCE = 1 << 10


class LmdbWriter:
    """See CorpusWriter. `at`: a mark; documents after it are removed."""

    def __init__(
        self,
        folder: Path,
        dtype: Dtype,
        *,
        at: State | None = None,
        generation: int = 0,
        map_bytes: int = MAP_BYTES,
    ) -> None:
        self._path, self._dtype = folder / FILE, dtype
        self._pending: list[tuple[Tokens, NDArray[np.uint32]]] = []
        self._pending_bytes = 0
        self._digest = ContentDigest(dtype)
        self.documents = 0
        self.tokens = 0
        self._written = 0
        match at:
            case None:
                documents = 0
            case {"documents": int(documents), "generation": int(generation)}:
                if not self._path.exists():
                    raise NotResumable(f"{self._path}: is gone")
            case _:
                raise NotResumable(f"no mark of a writer: {at!r}")
        spool = folder / LENGTHS_SPOOL
        with writing(spool):
            spool.unlink(missing_ok=True)
        self._index = IndexWriter(folder, generation=generation)
        try:
            self._env = _open(self._path, map_bytes)
        except BaseException:
            self._index.close()
            raise
        try:
            with writing_lmdb(self._path):
                self._documents_db = self._env.open_db(DOCUMENTS)
                self._progress_db = self._env.open_db(PROGRESS)
            self._take_up(documents)
        except BaseException:
            self.close()
            raise

    def append(self, tokens: Tokens, lengths: NDArray[np.uint32]) -> None:
        total = int(lengths.sum(dtype=np.int64))
        if tokens.dtype != self._dtype or tokens.size != total:
            raise ValueError(
                f"{tokens.size} tokens of {tokens.dtype} for {lengths.size} documents of {self._dtype}"
            )
        self._count(tokens, lengths)
        self._pending.append((tokens, lengths))
        self._pending_bytes += tokens.nbytes + lengths.nbytes
        if self._pending_bytes >= PENDING_BYTES:
            self._flush(None)

    def mark(self) -> State:
        self._flush(None)
        return self._mark()

    def save(self, progress: State) -> None:
        self._flush(json.dumps({"mark": self._mark(), "progress": progress}).encode())

    def finish(self) -> Written:
        self._flush(None)
        bounds, lengths = self._index.finish()
        self.close()
        return Written(self.documents, self.tokens, self._digest.hexdigest(), (), bounds, lengths)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._env.close()
        self._index.close()

    def _mark(self) -> State:
        return {"documents": self.documents, "generation": self._index.generation}

    def _count(self, tokens: Tokens, lengths: NDArray[np.uint32]) -> None:
        self._digest.tokens(tokens)
        self._digest.lengths(lengths)
        self._index.append(lengths)
        self.documents += lengths.size
        self.tokens += tokens.size

    def _flush(self, saved: bytes | None) -> None:
        """Write what is pending in one transaction. One that does not fit is begun again in a larger map."""
        while True:
            try:
                with writing_lmdb(self._path), self._env.begin(write=True) as transaction:
                    number = self._written
                    for document in self._documents():
                        transaction.put(key(number), document, append=True, db=self._documents_db)
                        number += 1
                    if saved is not None:
                        transaction.put(PROGRESS_KEY, saved, db=self._progress_db)
                break
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
        self._written = number
        self._pending.clear()
        self._pending_bytes = 0

    def _documents(self) -> Iterator[bytes]:
        for tokens, lengths in self._pending:
            data = tokens.astype(tokens.dtype.newbyteorder("<"), copy=False).tobytes()
            at = 0
            for size in (lengths.astype(np.int64) * tokens.itemsize).tolist():
                yield data[at : at + size]
                at += size

    def _take_up(self, documents: int) -> None:
        """Count the first `documents`, and remove those after them."""
        with writing_lmdb(self._path), self._env.begin(write=True, buffers=True) as transaction:
            cursor = transaction.cursor(self._documents_db)
            some: list[Tokens] = []
            for number, (name, value) in enumerate(cursor):
                if number == documents:
                    break
                if bytes(name) != key(number) or len(value) % np.dtype(self._dtype).itemsize:
                    raise NotResumable(f"{self._path}: holds another document where {number} is due")
                some.append(np.frombuffer(value, dtype=np.dtype(self._dtype)))
                if len(some) == _AT_ONCE:
                    self._count_each(some)
                    some = []
            self._count_each(some)
            if self.documents != documents:
                raise NotResumable(f"{self._path}: holds {self.documents} of {documents} documents")
            while cursor.set_range(key(documents)):
                cursor.delete()
        self._written = documents

    def _count_each(self, documents: list[Tokens]) -> None:
        if documents:
            lengths = np.array([document.size for document in documents], dtype=np.uint32)
            ids: Tokens = np.concatenate(documents).astype(self._dtype, copy=False)
            self._count(ids, lengths)


class LmdbStore:
    """See Store."""

    name: StoreName = "lmdb"

    def writer(self, folder: Path, dtype: Dtype, at: State | None = None) -> LmdbWriter:
        return LmdbWriter(folder, dtype, at=at)

    def appending(self, folder: Path, meta: CorpusMeta, lengths: NDArray[np.uint32]) -> LmdbWriter:
        generation = (index_generation(meta.lengths.name) or 0) + 1
        return LmdbWriter(folder, meta.dtype, at={"documents": int(lengths.size), "generation": generation})

    def saved(self, folder: Path) -> Saved | None:
        path = folder / FILE
        if not path.exists():
            return None
        env = _open(path, MAP_BYTES)
        try:
            with env.begin() as transaction:
                data = transaction.get(PROGRESS_KEY, db=env.open_db(PROGRESS, txn=transaction, create=False))
        except lmdb.Error:
            return None  # killed before its databases were there, or cut short by a power cut
        finally:
            env.close()
        match None if data is None else json.loads(data):
            case {"mark": dict(mark), "progress": dict(progress)}:
                return Saved(cast("State", mark), cast("State", progress))
        return None

    def owns(self, name: str) -> bool:
        return name in {FILE, LOCK_FILE, LENGTHS_SPOOL, BOUNDS_SPOOL} or index_generation(name) is not None

    def keeps(self, name: str) -> bool:
        return name in {FILE, LOCK_FILE}


def _open(path: Path, map_bytes: int) -> lmdb.Environment:
    with writing_lmdb(path):
        used = path.stat().st_size if path.exists() else 0
        return lmdb.open(str(path), subdir=False, map_size=max(map_bytes, used), max_dbs=DATABASES)


@contextmanager
def writing_lmdb(path: Path) -> Iterator[None]:
    """Turn lmdb's errors of the block into OutputFull, OutputBusy or OutputError. A full map is for the caller."""
    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.DiskError as error:
        raise OutputFull(f"{path}: {error}: free some space and run the same command again") from error
    except lmdb.Error as error:
        if "already open" in str(error):
            raise OutputBusy(f"{path}: this process reads it as a corpus; close that first") from error
        raise OutputError(f"{path}: cannot be written: {error}; choose another --out") from error
