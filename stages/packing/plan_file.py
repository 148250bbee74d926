"""A plan on disk: made once, mapped ever after.

    plan() ─► locked folder ─► file of this key? ─┬─► checked, mapped
                                                  └─► made ─► draft ─► synced ─► renamed ─► mapped

The file is an Arrow IPC file with a row a sample, so that polars and duckdb show which runs share a row. It holds
nothing that cannot be made again: one that is damaged, or of another key, is replaced; where none can be written the
plan is kept in memory.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import IOBase
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
from blake3 import blake3

from pipeline import JSON
from stages.errors import OutputError
from stages.packing.best_fit import Rows
from stages.storage import DurableFile, sync_folder, writing

FORMAT = 1
_KEY = b"headrace.packing"
_START, _LENGTH = "start", "length"


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Everything that a plan depends on."""

    corpus: str
    """The content digest."""
    method: str
    seq_len: int
    algorithm: int

    @property
    def file_name(self) -> str:
        """One file for each method and length: a plan of a corpus that has changed since is replaced."""
        return f"{self.method}-{self.seq_len}.arrow"


def plan(key: PlanKey, make: Callable[[], Rows], folder: Path | None) -> Rows:
    """The plan of this key: from `folder`, or made and left there. None: made, and left nowhere.

    Of several processes that ask at once, one makes it and the others wait for it. Where the folder cannot be made,
    locked or written, the plan is made each time.
    """
    if folder is None:
        return make()
    path = folder / key.file_name
    if (found := read_plan(path, key)) is not None:
        return found
    with _held(folder) as writable:
        if (found := read_plan(path, key)) is not None:
            return found
        rows = make()
        if writable:
            with suppress(OutputError):
                write_plan(path, key, rows)
                return read_plan(path, key) or rows
    return rows


def write_plan(path: Path, key: PlanKey, rows: Rows) -> None:
    """Let `path` appear whole and durable, or not at all. The caller holds the folder. Raises OutputError."""
    start = pa.LargeListArray.from_arrays(pa.array(rows.offset, pa.int64()), pa.array(rows.start, pa.int64()))
    length = pa.LargeListArray.from_arrays(
        pa.array(rows.offset, pa.int64()), pa.array(rows.length, pa.uint32())
    )
    described = json.dumps(_description(key, rows)).encode()
    columns = {_START: pa.large_list(pa.int64()), _LENGTH: pa.large_list(pa.uint32())}
    schema = pa.schema([pa.field(name, kind) for name, kind in columns.items()], metadata={_KEY: described})
    draft = path.with_name(path.name + ".draft")
    with writing(draft):
        draft.unlink(missing_ok=True)
    try:
        with DurableFile(draft) as file:
            sink = pa.PythonFile(cast("IOBase", file), mode="w")
            options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, compression=None)
            with pa.ipc.new_file(sink, schema, options=options) as out:
                out.write_batch(pa.record_batch([start, length], schema=schema))
        with writing(path):
            draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_plan(path: Path, key: PlanKey) -> Rows | None:
    """The plan at `path`, mapped and checked against its checksum; None where there is no sound one of this key."""
    try:
        with pa.memory_map(os.fsencode(path)) as file:  # type: ignore[arg-type]  # the stub leaves bytes out; a str must be UTF-8
            reader = pa.ipc.open_file(pa.BufferReader(file.read_buffer()))
        described = json.loads((reader.schema.metadata or {})[_KEY])
        if reader.num_record_batches != 1 or described.get("key") != asdict(key):
            return None
        batch = reader.get_batch(0)
        start, length = batch.column(_START), batch.column(_LENGTH)
    except (OSError, KeyError, ValueError, AttributeError):
        return None
    if not (isinstance(start, pa.LargeListArray) and isinstance(length, pa.LargeListArray)):
        return None
    if (start.values.type, length.values.type) != (pa.int64(), pa.uint32()):
        return None
    rows = Rows(
        offset=start.offsets.to_numpy(zero_copy_only=True),
        start=start.values.to_numpy(zero_copy_only=True),
        length=length.values.to_numpy(zero_copy_only=True),
    )
    return rows if described == _description(key, rows) else None


def _description(key: PlanKey, rows: Rows) -> dict[str, JSON]:
    return {"format": FORMAT, "key": asdict(key), "blake3": _digest(rows)}


def _digest(rows: Rows) -> str:
    """Of all offsets, starts and lengths, little-endian, end to end."""
    digest = blake3()
    for array, dtype in ((rows.offset, "<i8"), (rows.start, "<i8"), (rows.length, "<u4")):
        digest.update(np.ascontiguousarray(array, dtype).data.cast("B"))
    return digest.hexdigest()


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Hold the folder, made where it is missing, against whoever else makes plans; False where that cannot be."""
    try:
        folder.mkdir(exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _locked(fd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError:
        return False
    return True
