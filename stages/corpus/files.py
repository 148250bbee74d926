"""A corpus's files, opened and checked: what every store's reader begins with.

corpus.json ─► check_size ─► open_index ─► bounds, lengths (mapped)
                    └── verify_file: every byte, when asked
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray

from stages.corpus.arrow_layout import BOUND, LENGTH
from stages.corpus.meta import CorpusMeta, FileMeta
from stages.errors import CorpusDamaged, SpanError
from stages.storage import file_sha256

_Column: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"


class Indexed:
    """A corpus's metadata and index, and the checks of what is asked of it: what every store's reader is."""

    def __init__(self, folder: Path, meta: CorpusMeta) -> None:
        self._folder, self._meta = folder, meta
        for file in meta.files():
            check_size(folder, file)
        self._bounds, self._lengths = open_index(folder, meta)

    @property
    def meta(self) -> CorpusMeta:
        return self._meta

    @property
    def bounds(self) -> NDArray[np.int64]:
        return self._bounds

    @property
    def lengths(self) -> NDArray[np.uint32]:
        return self._lengths

    def __len__(self) -> int:
        return self._meta.documents

    def _check_buffer(self, out: NDArray[np.int64]) -> None:
        if out.dtype != np.int64 or out.ndim != 1:
            raise SpanError(f"the buffer must be flat and of int64, got {out.dtype} of shape {out.shape}")

    def _check_reach(self, stop: int, place: int, size: int) -> None:
        """That runs end by token `stop` of the corpus, and by `place` of a buffer of `size`."""
        if stop > self._meta.tokens:
            raise SpanError(f"{self._folder}: a run ends at token {stop}, the corpus has {self._meta.tokens}")
        if place > size:
            raise SpanError(f"a run ends at {place} in a buffer of {size}")

    def _check_view(self, doc: int, start: int, stop: int) -> None:
        if not 0 <= doc < len(self):
            raise SpanError(f"{self._folder}: document {doc} of {len(self)}")
        length = int(self._lengths[doc])
        if not 0 <= start <= stop <= length:
            raise SpanError(f"{self._folder}: tokens [{start}, {stop}) of document {doc}, which has {length}")


def open_index(folder: Path, meta: CorpusMeta) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Bounds and lengths, mapped. Raises CorpusDamaged."""
    bounds = _index(folder, meta.bounds, BOUND, pa.int64(), meta.documents + 1)
    lengths = _index(folder, meta.lengths, LENGTH, pa.uint32(), meta.documents)
    return bounds.to_numpy(zero_copy_only=True), lengths.to_numpy(zero_copy_only=True)


def verify_files(folder: Path, meta: CorpusMeta) -> None:
    """Read every file that has a checksum. Raises CorpusDamaged, naming the first that has changed."""
    for file in meta.files():
        _verify_file(folder, file.name, "blake3", file.blake3, blake3_of)
    _verify_file(folder, meta.tokenizer.name, "sha256", meta.tokenizer.sha256, file_sha256)


def verify_index(
    folder: Path, meta: CorpusMeta, bounds: NDArray[np.int64], lengths: NDArray[np.uint32]
) -> None:
    """Raises CorpusDamaged where the two say different things."""
    if not np.array_equal(np.diff(bounds), lengths) or bounds[0] != 0:
        raise CorpusDamaged(f"{folder}: {meta.bounds.name} and {meta.lengths.name} disagree")


def verify_digest(folder: Path, meta: CorpusMeta, found: str) -> None:
    """Raises CorpusDamaged where the content's digest is not `found`."""
    if found != meta.digest:
        raise CorpusDamaged(
            f"{folder}: the content digest is {found}, corpus.json says {meta.digest}; pack again"
        )


def blake3_of(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


def check_size(folder: Path, file: FileMeta) -> None:
    path = folder / file.name
    try:
        found = path.stat().st_size
    except OSError as error:
        raise CorpusDamaged(
            f"{path}: cannot be read ({error.strerror}), but corpus.json names it; "
            "restore the file or pack again"
        ) from error
    if found != file.bytes:
        raise CorpusDamaged(
            f"{path}: has {found} bytes, corpus.json says {file.bytes}; restore the file or pack again"
        )


def map_arrow(path: Path) -> tuple[pa.Buffer, pa.ipc.RecordBatchFileReader]:
    try:
        with pa.memory_map(os.fsencode(path)) as file:  # type: ignore[arg-type]  # the stub leaves bytes out; a str must be UTF-8
            buffer = file.read_buffer()
        return buffer, pa.ipc.open_file(pa.BufferReader(buffer))
    except (OSError, pa.ArrowInvalid) as error:
        raise CorpusDamaged(f"{path}: is no Arrow file ({error}); restore the file or pack again") from error


def single_column(path: Path, reader: pa.ipc.RecordBatchFileReader, name: str, number: int) -> _Column:
    try:
        batch = reader.get_batch(number)
        column = batch.column(name)
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        raise CorpusDamaged(f"{path}: record batch {number} cannot be read ({error}); pack again") from error
    if column.null_count or column.offset:
        raise CorpusDamaged(f"{path}: column {name} has nulls or an offset; pack again")
    return column


def _index(folder: Path, file: FileMeta, name: str, type_: pa.DataType, rows: int) -> _Column:
    """The one column of an index file, mapped."""
    path = folder / file.name
    _, reader = map_arrow(path)
    if reader.num_record_batches != 1:
        raise CorpusDamaged(f"{path}: has {reader.num_record_batches} record batches, expected 1; pack again")
    column = single_column(path, reader, name, 0)
    if column.type != type_ or len(column) != rows:
        raise CorpusDamaged(
            f"{path}: holds {len(column)} rows of {column.type}, expected {rows} of {type_}; pack again"
        )
    return column


def _verify_file(folder: Path, name: str, kind: str, expected: str, digest: Callable[[Path], str]) -> None:
    path = folder / name
    try:
        found = digest(path)
    except OSError as error:
        raise CorpusDamaged(
            f"{path}: cannot be read ({error.strerror}); restore the file or pack again"
        ) from error
    if found != expected:
        raise CorpusDamaged(
            f"{path}: its bytes have changed: {kind} is {found}, corpus.json says {expected}; "
            "restore the file or pack again"
        )
