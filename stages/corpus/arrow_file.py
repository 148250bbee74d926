"""An Arrow IPC file that hashes and syncs, and that can be taken up again in the middle.

The library writes a file's footer at its end from what it saw being written, so a file cannot simply be appended to. It
is written anew instead, batch by batch, into a sink that finds those bytes in place and writes none of them until it
has come to the mark:

    file | header | batch 0 | batch 1 |        |
         ╰─ read, written again, compared ─╯ mark ─► batch 2, written ─► … ─► footer
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from stages.corpus.growing import FileMark, GrowingFile, NotResumable
from stages.corpus.meta import FileMeta

_MAGIC_BYTES = 8
"""`ARROW1` and two zeros; from there on a file reads as a stream does."""


class ArrowFile:
    """Uncompressed. Raises OutputError, OutputFull, and NotResumable from `taken_up`."""

    def __init__(self, path: Path, schema: pa.Schema, *, at: FileMark | None = None) -> None:
        """`at`: a file that is there and has reached this mark; `taken_up` must be called next, to its end."""
        self._schema = schema
        self._file = GrowingFile(path, at=at)
        try:
            self._old = None if at is None else _mapped(path, at.bytes)
            self._sink = _Sink(self._file, self._old)
            # Pinned rather than left to the library's default: the bytes must not depend on its version.
            options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, compression=None)
            self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), schema, options=options)
        except BaseException:
            self._file.close()
            raise

    def taken_up(self) -> Iterator[pa.RecordBatch]:
        """The batches up to the mark."""
        if self._old is None:
            return
        try:
            for batch in pa.ipc.open_stream(pa.BufferReader(self._old.slice(_MAGIC_BYTES))):
                if batch.schema != self._schema:
                    raise NotResumable(f"{self._file.path}: holds {batch.schema}")
                self._writer.write_batch(batch)
                yield batch
        except pa.ArrowInvalid as error:
            raise NotResumable(f"{self._file.path}: is no Arrow file up to its mark: {error}") from error
        self._sink.reached()
        self._old = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def mark(self) -> FileMark:
        return self._file.mark()

    def finish(self) -> FileMeta:
        """Write the footer, sync and close."""
        try:
            self._writer.close()
            self._file.sync()
        finally:
            self._file.close()
        return FileMeta.of(self._file)

    def close(self) -> None:
        """Close the file, finished or not. May be called twice."""
        self._file.close()


class _Sink(io.IOBase):
    """A GrowingFile as Arrow wants it: closing this one leaves the file open, to be synced."""

    def __init__(self, file: GrowingFile, old: pa.Buffer | None) -> None:
        """`old`: the bytes that come first are there already."""
        self._file = file
        self._old = None if old is None else memoryview(old).cast("B")
        self._at = 0

    def reached(self) -> None:
        """No more are expected: what comes now is new."""
        if self._old is None or self._at != len(self._old):
            raise NotResumable(f"{self._file.path}: its mark lies within a record batch")
        self._old = None

    def write(self, data: bytes | memoryview) -> int:
        if self._old is None:
            return self._file.write(data)
        piece = memoryview(data).cast("B")
        if self._old[self._at : self._at + len(piece)] != piece:
            raise NotResumable(f"{self._file.path}: another version of the library would write other bytes")
        self._at += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._file.size if self._old is None else self._at

    def writable(self) -> bool:
        return True


def _mapped(path: Path, size: int) -> pa.Buffer:
    try:
        with pa.memory_map(os.fsencode(path)) as mapped:  # type: ignore[arg-type]  # the stub leaves bytes out; a str must be UTF-8
            return mapped.read_buffer(size)
    except (pa.ArrowInvalid, OSError) as error:
        raise NotResumable(f"{path}: cannot be read: {error}") from error
