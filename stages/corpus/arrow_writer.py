"""The arrow store, writing: documents in, shards and an index out.

    append ─► batch (in memory) ─► shard ─► next shard …
       │          └─ mark ─► batch-00000.spool
       └────► lengths.spool ─► finish: lengths.arrow, bounds.arrow, the content digest

Where batches and shards end depends on the documents alone, never on how they were handed over or on where a
writer was killed, so equal documents give equal bytes. Memory holds one record batch and one document, however
large the corpus is.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from pipeline import State
from stages.corpus.arrow_file import ArrowFile
from stages.corpus.arrow_layout import (
    BATCH_TOKENS,
    SHARD_TOKENS,
    index_generation,
    is_shard,
    shard_file,
    tokens_schema,
)
from stages.corpus.arrow_shard import column_of, digested
from stages.corpus.digest import ContentDigest
from stages.corpus.growing import FileMark, GrowingFile, NotResumable
from stages.corpus.index_writer import BOUNDS_SPOOL, LENGTHS_SPOOL, IndexWriter, seed_lengths
from stages.corpus.meta import CorpusMeta, Dtype, ShardMeta, StoreName
from stages.corpus.reader import Tokens
from stages.corpus.writer import Saved, Written
from stages.storage import publish, writing

PROGRESS_FILE = "progress.json"
_SPOOL = "batch-{:05d}.spool"
_SPOOLS = re.compile(r"batch-\d{5,}\.spool")


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where an ArrowWriter was."""

    shards: tuple[ShardMeta, ...]
    """Those that were finished."""
    shard: FileMark | None
    """The one that was being written."""
    batches: int
    """Record batches written, over all shards: the number of the spool."""
    batch: FileMark | None
    """The spool of the record batch that was being filled; None where it was empty."""
    batch_documents: int
    lengths: FileMark
    generation: int = 0
    """How many appends the corpus has seen, this one counted."""


_MARK = TypeAdapter(_Mark)


class ArrowWriter:
    """See CorpusWriter."""

    def __init__(
        self,
        folder: Path,
        dtype: Dtype,
        *,
        batch_tokens: int = BATCH_TOKENS,
        shard_tokens: int = SHARD_TOKENS,
        at: State | None = None,
    ) -> None:
        if not 1 <= batch_tokens <= shard_tokens:
            raise ValueError(
                f"1 <= batch_tokens <= shard_tokens expected, got {batch_tokens}, {shard_tokens}"
            )
        self._folder, self._dtype = folder, dtype
        self._batch_tokens, self._shard_tokens = batch_tokens, shard_tokens
        self._batch = _Batch(dtype, batch_tokens)
        self._batches = 0
        self._spool: GrowingFile | None = None
        self._shard: _Shard | None = None
        self._shards: list[ShardMeta] = []
        self._digest = ContentDigest(dtype)
        self.documents = 0
        self.tokens = 0
        if at is None:
            self._index = IndexWriter(folder)
            return
        mark = _parse(at)
        self._index = IndexWriter(folder, generation=mark.generation, at=mark.lengths)
        try:
            self._take_up(mark)
        except BaseException:
            self.close()
            raise

    def append(self, tokens: Tokens, lengths: NDArray[np.uint32]) -> None:
        ends = np.cumsum(lengths, dtype=np.int64)
        if tokens.dtype != self._dtype or tokens.size != (int(ends[-1]) if ends.size else 0):
            raise ValueError(
                f"{tokens.size} tokens of {tokens.dtype} for {ends.size} documents of {self._dtype}"
            )
        if not ends.size:
            return
        self._digest.tokens(tokens)
        self._digest.lengths(lengths)
        self._index.append(lengths)
        self.documents += ends.size
        self.tokens += tokens.size
        document, at = 0, 0
        while document < ends.size:
            # The document that reaches the batch's size is its last one.
            room = self._batch_tokens - self._batch.tokens
            stop = min(int(ends.searchsorted(at + room)) + 1, ends.size)
            end = int(ends[stop - 1])
            self._batch.add(tokens[at:end], lengths[document:stop])
            document, at = stop, end
            if self._batch.tokens >= self._batch_tokens:
                self._flush()

    def mark(self) -> State:
        state = asdict(self._mark())
        return _json(state)

    def save(self, progress: State) -> None:
        saved = {"mark": self.mark(), "progress": progress}
        publish(self._folder / PROGRESS_FILE, json.dumps(saved).encode())
        self._remove_spools()

    def finish(self) -> Written:
        if self._batch.documents:
            self._flush()
        self._end_shard()
        bounds, lengths = self._index.finish()
        self._end_spool()
        return Written(
            documents=self.documents,
            tokens=self.tokens,
            digest=self._digest.hexdigest(),
            shards=tuple(self._shards),
            bounds=bounds,
            lengths=lengths,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._shard is not None:
            self._shard.close()
        self._end_spool()
        self._index.close()

    def _flush(self) -> None:
        if self._shard is None:
            path = self._folder / shard_file(len(self._shards))
            with writing(path):
                path.unlink(missing_ok=True)  # begun after the moment that this writer has gone on from
            self._shard = _Shard(path, self._dtype)
        self._shard.write(self._batch)
        self._batch.clear()
        self._batches += 1
        self._end_spool()
        if self._shard.tokens >= self._shard_tokens:
            self._end_shard()

    def _end_shard(self) -> None:
        if self._shard is not None:
            shard, self._shard = self._shard, None
            self._shards.append(shard.finish())

    def _end_spool(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _remove_spools(self) -> None:
        """Those of batches that have been written since: what has been saved does not speak of them any more."""
        for path in self._folder.iterdir():
            if _SPOOLS.fullmatch(path.name) and (self._spool is None or path != self._spool.path):
                with writing(path):
                    path.unlink()

    def _mark(self) -> _Mark:
        shard, batch = self._shard, self._batch
        return _Mark(
            shards=tuple(self._shards),
            shard=None if shard is None else shard.mark(),
            batches=self._batches,
            batch=self._spooled() if batch.documents else None,
            batch_documents=batch.documents,
            lengths=self._index.mark(),
            generation=self._index.generation,
        )

    def _spooled(self) -> FileMark:
        """The batch at hand, made durable: what of it no mark has written yet is added to its spool."""
        if self._spool is None:
            path = self._folder / _SPOOL.format(self._batches)
            with writing(path):
                path.unlink(missing_ok=True)
            self._spool = GrowingFile(path)
        ids = self._batch.ids()
        rest = ids[self._spool.size // ids.itemsize :]
        self._spool.write(rest.view(np.uint8).data)
        return self._spool.mark()

    def _take_up(self, mark: _Mark) -> None:
        self._shards = list(mark.shards)
        for shard in mark.shards:
            self._count(digested(self._folder, shard, self._dtype, self._digest))
        if mark.shard is not None:
            self._shard = _Shard(self._folder / shard_file(len(self._shards)), self._dtype, at=mark.shard)
            self._count(self._shard.taken_up(self._digest))
        lengths = self._index.lengths()
        self._digest.lengths(lengths)
        if mark.batch is not None:
            self._spool = GrowingFile(self._folder / _SPOOL.format(mark.batches), at=mark.batch)
            ids = np.fromfile(self._spool.path, dtype=np.dtype(self._dtype))
            own = np.array(lengths[lengths.size - mark.batch_documents :])
            self._digest.tokens(ids)
            self._batch.add(ids, own)
            self._count((own.size, ids.size))
        if self.documents != lengths.size or self.tokens != int(lengths.sum(dtype=np.int64)):
            raise NotResumable(f"{self._folder}: its parts are of different moments")

    def _count(self, documents_and_tokens: tuple[int, int]) -> None:
        documents, tokens = documents_and_tokens
        self.documents += documents
        self.tokens += tokens


class _Batch:
    """The record batch that is being filled. Its buffer is reused, and grows where one document is larger."""

    def __init__(self, dtype: Dtype, tokens: int) -> None:
        self._ids = np.empty(0, dtype=dtype)
        self._target = tokens
        self._lengths: list[NDArray[np.uint32]] = []
        self.tokens = 0
        self.documents = 0

    def add(self, tokens: Tokens, lengths: NDArray[np.uint32]) -> None:
        stop = self.tokens + tokens.size
        if stop > self._ids.size:
            # Doubled, so that small corpora stay small; a copy rather than resize(), which refuses while
            # viewed.
            grown = np.empty(max(stop, min(2 * self._ids.size, self._target), 1 << 16), dtype=self._ids.dtype)
            grown[: self.tokens] = self._ids[: self.tokens]
            self._ids = grown
        self._ids[self.tokens : stop] = tokens
        self._lengths.append(lengths)
        self.tokens = stop
        self.documents += lengths.size

    def ids(self) -> Tokens:
        """Shape (tokens,): valid until the next call."""
        return self._ids[: self.tokens]

    def record_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        offsets = np.zeros(self.documents + 1, dtype=np.int64)
        np.cumsum(np.concatenate(self._lengths), out=offsets[1:])
        ids = pa.array(self.ids(), type=pa.from_numpy_dtype(self._ids.dtype))
        rows = pa.array(offsets, type=pa.int64())
        column = pa.LargeListArray.from_arrays(rows, ids, type=schema.field(0).type)
        return pa.record_batch([column], schema=schema)

    def clear(self) -> None:
        self._lengths.clear()
        self.tokens = self.documents = 0


class _Shard:
    def __init__(self, path: Path, dtype: Dtype, *, at: FileMark | None = None) -> None:
        self._schema = tokens_schema(dtype)
        self._file = ArrowFile(path, self._schema, at=at)
        self.documents = 0
        self.tokens = 0

    def taken_up(self, digest: ContentDigest) -> tuple[int, int]:
        """Documents and tokens up to the mark."""
        for batch in self._file.taken_up():
            documents, ids = column_of(batch)
            digest.tokens(ids)
            self.documents += documents
            self.tokens += ids.size
        return self.documents, self.tokens

    def write(self, batch: _Batch) -> None:
        self._file.write(batch.record_batch(self._schema))
        self.documents += batch.documents
        self.tokens += batch.tokens

    def mark(self) -> FileMark:
        return self._file.mark()

    def finish(self) -> ShardMeta:
        return ShardMeta(file=self._file.finish(), documents=self.documents, tokens=self.tokens)

    def close(self) -> None:
        self._file.close()


class ArrowStore:
    """See Store."""

    name: StoreName = "arrow"

    def writer(self, folder: Path, dtype: Dtype, at: State | None = None) -> ArrowWriter:
        return ArrowWriter(folder, dtype, at=at)

    def appending(self, folder: Path, meta: CorpusMeta, lengths: NDArray[np.uint32]) -> ArrowWriter:
        # As if killed after the last document: a shard that is finished is not written again.
        seeded = seed_lengths(folder, lengths)
        generation = (index_generation(meta.lengths.name) or 0) + 1
        mark = _Mark(meta.shards, None, 0, None, 0, seeded, generation)
        return ArrowWriter(folder, meta.dtype, at=_json(asdict(mark)))

    def saved(self, folder: Path) -> Saved | None:
        try:
            raw = json.loads((folder / PROGRESS_FILE).read_bytes())
        except (OSError, ValueError):
            return None
        match raw:
            case {"mark": dict(mark), "progress": dict(progress)}:
                return Saved(mark, progress)
        return None

    def owns(self, name: str) -> bool:
        return (
            is_shard(name)
            or index_generation(name) is not None
            or _SPOOLS.fullmatch(name) is not None
            or name in {LENGTHS_SPOOL, BOUNDS_SPOOL, PROGRESS_FILE, f"{PROGRESS_FILE}.draft"}
        )

    def keeps(self, name: str) -> bool:
        return False


def _parse(state: State) -> _Mark:
    try:
        return _MARK.validate_python(state)
    except ValidationError as error:
        raise NotResumable(f"no mark of a writer: {error}") from error


def _json(plain: dict[str, object]) -> State:
    """`plain` as JSON has it: lists for tuples."""
    return cast("State", json.loads(json.dumps(plain)))
