"""Arrow IPC, streams and files, as pyarrow and Hugging Face datasets write them; memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from stages.inputs.columns import DAMAGE, Rows, damaged, records, refusal
from stages.inputs.record import Judge, Refused

_MAGIC = b"ARROW1"
_BEGIN_BYTES = 8
"""Of a file, the magic and its padding; what follows is laid out as a stream."""
_ROWS = 1 << 10


def arrow_rows(path: str, judge: Judge, field: str, done: int) -> Rows:
    """The records of a file, in lists; lists that lie in its first `done` rows are left out.

    What comes before damage is read; the damage is one bad record.
    """
    if Path(path).stat().st_size == 0:
        yield [judge.refused(1, 1, Refused("broken_arrow", "the file is empty"))]
        return
    row = 0
    with pa.memory_map(path) as file:
        try:
            for batch in _batches(file, field):
                if isinstance(batch, Refused):
                    yield [judge.refused(1, 1, batch)]
                    return
                for at in range(0, batch.num_rows, _ROWS):
                    part = batch.slice(at, _ROWS)
                    if row + part.num_rows > done:
                        yield records(judge, part.column(0), field, row)
                    row += part.num_rows
        except DAMAGE as error:
            why = Refused("broken_arrow", f"no Arrow IPC, or damaged: {damaged(error)}")
            yield [judge.refused(row + 1, row + 1, why)]


def _batches(file: pa.MemoryMappedFile, field: str) -> Iterator[pa.RecordBatch | Refused]:
    """Batches of the column wanted alone."""
    begin = _BEGIN_BYTES if file.read(len(_MAGIC)) == _MAGIC else 0
    file.seek(begin)
    schema = pa.ipc.open_stream(file).schema
    why = refusal(schema, field)
    if why is not None:
        yield why
        return
    file.seek(begin)
    options = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(field)], use_threads=False)
    yield from pa.ipc.open_stream(file, options=options)
