"""The index that every store keeps beside its tokens, writing: lengths in, lengths and bounds out.

    append ─► lengths.spool (raw) ─► finish ─► lengths.arrow
                                         └───► bounds.spool ─► bounds.arrow

Spools, so that memory does not grow with the number of documents.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.corpus.arrow_file import ArrowFile
from stages.corpus.arrow_layout import bounds_schema, index_files, lengths_schema
from stages.corpus.growing import FileMark, GrowingFile, NotResumable
from stages.corpus.meta import FileMeta
from stages.storage import DurableFile, writing

LENGTHS_SPOOL, BOUNDS_SPOOL = "lengths.spool", "bounds.spool"
_AT_ONCE = 1 << 20


def seed_lengths(folder: Path, lengths: NDArray[np.uint32]) -> FileMark:
    """Begin a spool with the lengths of a corpus that is appended to."""
    with writing(folder / LENGTHS_SPOOL):
        (folder / LENGTHS_SPOOL).unlink(missing_ok=True)
    with DurableFile(folder / LENGTHS_SPOOL) as file:
        for at in range(0, lengths.size, _AT_ONCE):
            file.write(lengths[at : at + _AT_ONCE].astype("<u4", copy=False).tobytes())
    return FileMark(file.size, file.blake3)


class IndexWriter:
    """Raises OutputError, OutputFull, and NotResumable where `at` names a moment that the spool does not have."""

    def __init__(self, folder: Path, *, generation: int = 0, at: FileMark | None = None) -> None:
        self._folder, self.generation = folder, generation
        self._spool = GrowingFile(folder / LENGTHS_SPOOL, at=at)

    @property
    def documents(self) -> int:
        return self._spool.size // 4

    def append(self, lengths: NDArray[np.uint32]) -> None:
        self._spool.write(lengths.astype("<u4", copy=False).tobytes())

    def mark(self) -> FileMark:
        return self._spool.mark()

    def lengths(self) -> NDArray[np.uint32]:
        """What has been appended, mapped; shape (documents,)."""
        if not self._spool.size:
            return np.zeros(0, dtype=np.uint32)
        if self._spool.size % 4:
            raise NotResumable(f"{self._spool.path}: {self._spool.size} bytes are no whole number of lengths")
        return np.memmap(self._spool.path, dtype="<u4", mode="r")

    def finish(self) -> tuple[FileMeta, FileMeta]:
        """Bounds and lengths, as Arrow files of one record batch each. The spools stay: it may have to be redone."""
        lengths = self.lengths()
        with writing(self._folder / BOUNDS_SPOOL):
            (self._folder / BOUNDS_SPOOL).unlink(missing_ok=True)
        with closing(DurableFile(self._folder / BOUNDS_SPOOL)) as bounds:
            total = np.int64(0)
            bounds.write(total.astype("<i8").tobytes())
            for at in range(0, lengths.size, _AT_ONCE):
                ends = np.cumsum(lengths[at : at + _AT_ONCE], dtype=np.int64) + total
                total = ends[-1]
                bounds.write(ends.astype("<i8", copy=False).tobytes())
        documents = self.documents
        self.close()
        bounds_name, lengths_name = index_files(self.generation)
        return (
            self._file(bounds_name, BOUNDS_SPOOL, bounds_schema(), documents + 1),
            self._file(lengths_name, LENGTHS_SPOOL, lengths_schema(), documents),
        )

    def close(self) -> None:
        self._spool.close()

    def _file(self, name: str, spool: str, schema: pa.Schema, rows: int) -> FileMeta:
        source = self._folder / spool
        target = self._folder / name
        with writing(target):
            target.unlink(missing_ok=True)  # of a writer that was killed here
        with pa.memory_map(os.fsencode(source)) as mapped:  # type: ignore[arg-type]  # the stub leaves bytes out; a str must be UTF-8
            values = mapped.read_buffer()
        array = pa.Array.from_buffers(schema.field(0).type, rows, [None, values], null_count=0)
        file = ArrowFile(target, schema)
        try:
            file.write(pa.record_batch([array], schema=schema))
            return file.finish()
        finally:
            file.close()
