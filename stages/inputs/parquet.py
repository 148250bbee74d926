"""Parquet: the column of texts alone, row group by row group, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from stages.inputs.columns import DAMAGE, Rows, damaged, records, refusal
from stages.inputs.record import Judge, Record, Refused

BATCH_BYTES = 4 << 20
"""About what is decoded at once. A page of a column may stand for 2 GiB, whatever is asked for: the format's bound."""
BATCH_ROWS = 1 << 10
_BUFFER_BYTES = 1 << 20
_METADATA_BYTES = 256 << 20


def parquet_rows(path: str, judge: Judge, field: str, done: int) -> Rows:
    """The records of a file, in lists; those of row groups that lie in the first `done` rows are left out.

    A row group that is damaged is one bad record, and the next one is read.
    """
    with pa.OSFile(path, "r") as file:
        try:
            opened = pq.ParquetFile(
                file,
                pre_buffer=False,
                buffer_size=_BUFFER_BYTES,
                thrift_string_size_limit=_METADATA_BYTES,
                thrift_container_size_limit=_METADATA_BYTES,
            )
            why = refusal(opened.schema_arrow, field)
        except DAMAGE as error:
            why = Refused("broken_parquet", f"no Parquet, or damaged: {damaged(error)}")
        if why is not None:
            yield [judge.refused(1, 1, why)]
            return
        before = 0
        for index in range(opened.num_row_groups):
            rows = max(0, opened.metadata.row_group(index).num_rows)
            if before + rows > done:
                yield from _group(opened, index, before, rows, judge, field)
            before += rows


def _group(opened: pq.ParquetFile, index: int, before: int, rows: int, judge: Judge, field: str) -> Rows:
    done = before
    try:
        for batch in opened.iter_batches(
            batch_size=_batch_rows(opened, index, field),
            row_groups=[index],
            columns=[field],
            use_threads=False,
        ):
            found = records(judge, batch.column(0), field, done)
            done += len(found)
            yield found
    except DAMAGE as error:
        lost = Refused(
            "broken_parquet",
            f"row group {index}: {before + rows - done} rows cannot be read: {damaged(error)}",
        )
        # It stands for all rows that are lost, so that the next one goes on after them.
        yield [
            Record(
                done + 1, max(before + rows, done + 1), 0, None, judge.refused(done + 1, done + 1, lost).bad
            )
        ]


def _batch_rows(opened: pq.ParquetFile, index: int, field: str) -> int:
    group = opened.metadata.row_group(index)
    size = sum(
        chunk.total_uncompressed_size
        for chunk in _chunks(opened, index)
        if chunk.path_in_schema.partition(".")[0] == field
    )
    return max(1, min(BATCH_ROWS, BATCH_BYTES * max(1, group.num_rows) // max(1, size)))


def _chunks(opened: pq.ParquetFile, index: int) -> Iterator[pq.ColumnChunkMetaData]:
    group = opened.metadata.row_group(index)
    for column in range(group.num_columns):
        yield group.column(column)
