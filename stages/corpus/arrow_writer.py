"""The arrow store, writing: documents in, shards and an index out.

    append ─► batch (in memory) ─► shard ─► next shard …
       └────► lengths, bounds (two raw spools) ─► finish: lengths.arrow, bounds.arrow, the content digest

Where batches and shards end depends on the documents alone, never on how they were handed over, so equal
documents give equal bytes. Memory holds one record batch and one document, however large the corpus is.
"""

from __future__ import annotations

import io
import os
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.corpus.arrow_layout import (
    BATCH_TOKENS,
    BOUNDS_FILE,
    LENGTHS_FILE,
    SHARD_TOKENS,
    bounds_schema,
    lengths_schema,
    shard_file,
    tokens_schema,
)
from stages.corpus.digest import ContentDigest
from stages.corpus.meta import Dtype, FileMeta, ShardMeta
from stages.corpus.reader import Tokens
from stages.storage import DurableFile, writing

_LENGTHS_SPOOL, _BOUNDS_SPOOL = "lengths.spool", "bounds.spool"


@dataclass(frozen=True, slots=True)
class Written:
    """What a writer has made, durable but for the folder's names."""

    documents: int
    tokens: int
    digest: str
    shards: tuple[ShardMeta, ...]
    bounds: FileMeta
    lengths: FileMeta


class ArrowWriter:
    """Writes one corpus's store into an empty folder. Not safe from several threads.

    Use as a context manager: leaving it closes every file; what `finish` has not completed is for the caller
    to remove. Raises OutputError, OutputFull.
    """

    def __init__(
        self,
        folder: Path,
        dtype: Dtype,
        *,
        batch_tokens: int = BATCH_TOKENS,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        if not 1 <= batch_tokens <= shard_tokens:
            raise ValueError(
                f"1 <= batch_tokens <= shard_tokens expected, got {batch_tokens}, {shard_tokens}"
            )
        self._folder, self._dtype = folder, dtype
        self._batch_tokens, self._shard_tokens = batch_tokens, shard_tokens
        self._files = ExitStack()
        self._batch = _Batch(dtype, batch_tokens)
        self._shard: _Shard | None = None
        self._shards: list[ShardMeta] = []
        self._digest = ContentDigest(dtype)
        # Closed, never synced: spools need not outlive the process.
        self._lengths = self._files.enter_context(closing(DurableFile(folder / _LENGTHS_SPOOL)))
        self._bounds = self._files.enter_context(closing(DurableFile(folder / _BOUNDS_SPOOL)))
        self._bounds.write(np.zeros(1, dtype="<i8").tobytes())
        self.documents = 0
        self.tokens = 0

    def append(self, tokens: Tokens, lengths: NDArray[np.uint32]) -> None:
        """Add documents: their ids end to end, shape (sum of lengths,), and their lengths, shape
        (documents,)."""
        ends = np.cumsum(lengths, dtype=np.int64)
        if tokens.dtype != self._dtype or tokens.size != (int(ends[-1]) if ends.size else 0):
            raise ValueError(
                f"{tokens.size} tokens of {tokens.dtype} for {ends.size} documents of {self._dtype}"
            )
        if not ends.size:
            return
        self._digest.tokens(tokens)
        self._digest.lengths(lengths)
        self._lengths.write(lengths.astype("<u4", copy=False).tobytes())
        self._bounds.write((ends + self.tokens).astype("<i8", copy=False).tobytes())
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

    def finish(self) -> Written:
        """Write what is left and the index, and sync every file. The folder itself is for the caller to
        sync."""
        if self._batch.documents:
            self._flush()
        self._end_shard()
        self._files.close()
        return Written(
            documents=self.documents,
            tokens=self.tokens,
            digest=self._digest.hexdigest(),
            shards=tuple(self._shards),
            bounds=self._index(BOUNDS_FILE, _BOUNDS_SPOOL, bounds_schema(), self.documents + 1),
            lengths=self._index(LENGTHS_FILE, _LENGTHS_SPOOL, lengths_schema(), self.documents),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every file, finished or not. May be called twice."""
        if self._shard is not None:
            self._shard.abandon()
        self._files.close()

    def _flush(self) -> None:
        if self._shard is None:
            self._shard = _Shard(self._folder / shard_file(len(self._shards)), self._dtype)
        self._shard.write(self._batch)
        self._batch.clear()
        if self._shard.tokens >= self._shard_tokens:
            self._end_shard()

    def _end_shard(self) -> None:
        if self._shard is not None:
            shard, self._shard = self._shard, None
            self._shards.append(shard.finish())

    def _index(self, name: str, spool: str, schema: pa.Schema, rows: int) -> FileMeta:
        """Turn a spool into an Arrow file of one record batch, mapped so that it need not fit into memory."""
        source = self._folder / spool
        with pa.memory_map(os.fsencode(source)) as mapped:  # type: ignore[arg-type]  # the stub leaves bytes out; a str must be UTF-8
            values = mapped.read_buffer()
        array = pa.Array.from_buffers(schema.field(0).type, rows, [None, values], null_count=0)
        file = _ArrowFile(self._folder / name, schema)
        file.write(pa.record_batch([array], schema=schema))
        meta = file.finish()
        with writing(source):
            source.unlink()
        return meta


SPOOLS = (_LENGTHS_SPOOL, _BOUNDS_SPOOL)
"""What a killed writer may leave beside the store's own files."""


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

    def record_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        offsets = np.zeros(self.documents + 1, dtype=np.int64)
        np.cumsum(np.concatenate(self._lengths), out=offsets[1:])
        ids = pa.array(self._ids[: self.tokens], type=pa.from_numpy_dtype(self._ids.dtype))
        rows = pa.array(offsets, type=pa.int64())
        column = pa.LargeListArray.from_arrays(rows, ids, type=schema.field(0).type)
        return pa.record_batch([column], schema=schema)

    def clear(self) -> None:
        self._lengths.clear()
        self.tokens = self.documents = 0


class _Sink(io.IOBase):
    """A DurableFile as Arrow wants it: closing this one leaves the file open, to be synced."""

    def __init__(self, file: DurableFile) -> None:
        self._file = file

    def write(self, data: bytes | memoryview) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.size

    def writable(self) -> bool:
        return True


class _ArrowFile:
    """An Arrow IPC file, uncompressed, that hashes and syncs."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = DurableFile(path)
        # Pinned rather than left to the library's default: the bytes must not depend on its version.
        options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, compression=None)
        self._writer = pa.ipc.new_file(pa.PythonFile(_Sink(self._file), mode="w"), schema, options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> FileMeta:
        try:
            self._writer.close()
            self._file.sync()
        finally:
            self._file.close()
        return FileMeta.of(self._file)

    def abandon(self) -> None:
        self._file.close()


class _Shard:
    def __init__(self, path: Path, dtype: Dtype) -> None:
        self._schema = tokens_schema(dtype)
        self._file = _ArrowFile(path, self._schema)
        self.documents = 0
        self.tokens = 0

    def write(self, batch: _Batch) -> None:
        self._file.write(batch.record_batch(self._schema))
        self.documents += batch.documents
        self.tokens += batch.tokens

    def finish(self) -> ShardMeta:
        return ShardMeta(file=self._file.finish(), documents=self.documents, tokens=self.tokens)

    def abandon(self) -> None:
        self._file.abandon()
