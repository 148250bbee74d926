"""One file, from its beginning to its end: hashed as it stands, records as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias

import aiofiles
from blake3 import blake3

from stages.errors import InputError
from stages.inputs.arrow import arrow_rows
from stages.inputs.columns import Rows
from stages.inputs.inflate import inflate
from stages.inputs.mds import mds_steps
from stages.inputs.parquet import parquet_rows
from stages.inputs.record import Judge, Record, Refused
from stages.inputs.scan import InputFile
from stages.inputs.spec import ReadSpec
from stages.inputs.stream import JsonLines, Parser, Pull, WholeText
from stages.inputs.tar import Tar
from stages.inputs.tfrecord import tfrecord_steps

READ_BYTES = 1 << 20
_Table: TypeAlias = Callable[[str, Judge, str, int], Rows]

_TABLES: dict[str, _Table] = {"parquet": parquet_rows, "arrow": arrow_rows}


class Reading:
    """Reads `file`; `data` is the whole of it, where it has been read already.

    `done` is the `stop` of the last record that is known: a format that can leaves out what lies before it, whoever
    reads leaves out the rest.
    """

    def __init__(self, file: InputFile, spec: ReadSpec, data: bytes | None, done: int) -> None:
        self._file, self._spec, self._data, self._done = file, spec, data, done
        self._hash = blake3()
        self._taken = 0
        self._over = False
        self.read_bytes = 0

    def digest(self) -> str:
        return self._hash.hexdigest()

    def take_read(self) -> int:
        """Bytes read since the last call."""
        fresh, self._taken = self.read_bytes - self._taken, self.read_bytes
        return fresh

    def records(self) -> AsyncGenerator[Record, None]:
        """All records, in order. Raises InputError where the file cannot be read."""
        judge = Judge(self._file.label, self._spec.record_bytes)
        table = _TABLES.get(self._file.kind)
        if table is not None:
            return self._table(table, judge)
        return self._stream(_parser(self._file, judge, self._spec.field))

    async def rest(self) -> None:
        """Read on to the file's end, only to hash it: what a file holds is known by its bytes."""
        async with aclosing(self._pieces()) as pieces:
            async for _ in pieces:
                pass

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """What of the file has not been read yet."""
        if self._over:
            return
        if self._data is not None:
            self._over = True
            if self._data:
                yield self._read(self._data)
            return
        try:
            async with aiofiles.open(self._file.path, "rb", buffering=0) as file:
                await file.seek(self.read_bytes)
                while piece := await file.read(READ_BYTES):
                    yield self._read(piece)
        except OSError as error:
            raise self._unreadable(error) from error
        self._over = True

    def _read(self, piece: bytes) -> bytes:
        self._hash.update(piece)
        self.read_bytes += len(piece)
        return piece

    async def _stream(self, parser: Parser) -> AsyncGenerator[Record, None]:
        inflating = inflate(self._file.coding)
        damage: Refused | None = None
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                inflated = inflating.feed(piece)
                while damage is None:
                    try:
                        part = next(inflated, None)
                    except ValueError as error:
                        damage = inflating.damaged(error)
                        break
                    if part is None:
                        break
                    for record in parser.feed(part):
                        yield record
        for record in parser.finish(damage or inflating.finish()):
            yield record

    async def _table(self, table: _Table, judge: Judge) -> AsyncGenerator[Record, None]:
        await self.rest()
        rows = table(self._file.path, judge, self._spec.field, self._done)
        try:
            while (found := await asyncio.to_thread(next, rows, None)) is not None:
                for record in found:
                    yield record
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> InputError:
        return InputError(f"{self._file.label}: cannot be read: {error.strerror or error}")


def _parser(file: InputFile, judge: Judge, field: str) -> Parser:
    match file.kind:
        case "lines":
            return JsonLines(judge, field)
        case "tar":
            return Pull(judge, Tar(judge, field).steps())
        case "tfrecord":
            return Pull(judge, tfrecord_steps(judge, field))
        case "mds":
            return Pull(judge, mds_steps(judge, field))
        case _:
            return WholeText(judge)
