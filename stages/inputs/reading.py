"""One file, from its beginning to its end: hashed as it stands, records as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext
from tempfile import NamedTemporaryFile
from typing import IO, TypeAlias

import aiofiles
from blake3 import blake3

from stages.errors import InputError, StorageError, StorageUnavailable
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
from stages.storage import Location, Storages, locate, stream

READ_BYTES = 1 << 20
_Table: TypeAlias = Callable[[str, Judge, str, int], Rows]

_TABLES: dict[str, _Table] = {"parquet": parquet_rows, "arrow": arrow_rows}


class Reading:
    """Reads `file`; `data` is the whole of it, where it has been read already.

    `done` is the `stop` of the last record that is known: a format that can leaves out what lies before it, whoever
    reads leaves out the rest.
    """

    def __init__(
        self, file: InputFile, spec: ReadSpec, storages: Storages, data: bytes | None = None, done: int = 0
    ) -> None:
        self._file, self._spec, self._storages, self._data, self._done = file, spec, storages, data, done
        self._location = locate(file.path)
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
        """All records, in order. Raises InputError where the file cannot be read, and StorageUnavailable."""
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
        async with aclosing(
            self._on_disk() if self._location is None else self._in_store(self._location)
        ) as pieces:
            async for piece in pieces:
                yield self._read(piece)
        self._over = True

    async def _on_disk(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aiofiles.open(self._file.path, "rb", buffering=0) as file:
                await file.seek(self.read_bytes)
                while piece := await file.read(READ_BYTES):
                    yield piece
        except OSError as error:
            raise self._unreadable(error) from error

    async def _in_store(self, location: Location) -> AsyncGenerator[bytes, None]:
        try:
            storage = self._storages.at(location.root)
            pieces = stream(storage, location.path, self.read_bytes, self._file.bytes, piece_bytes=READ_BYTES)
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except StorageUnavailable:
            raise
        except StorageError as error:
            raise InputError(f"{self._file.label}: cannot be read: {error}") from error

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
        """Tables are read at places, by a library that wants a file: one that lies elsewhere is brought here first."""
        with NamedTemporaryFile(prefix="headrace-") if self._location is not None else nullcontext() as copy:
            try:
                await self._bring(copy)
                rows = table(
                    self._file.path if copy is None else copy.name, judge, self._spec.field, self._done
                )
                while (found := await asyncio.to_thread(next, rows, None)) is not None:
                    for record in found:
                        yield record
            except OSError as error:
                raise self._unreadable(error) from error

    async def _bring(self, copy: IO[bytes] | None) -> None:
        """Read the whole file, to hash it and to keep it in `copy`."""
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                if copy is not None:
                    await asyncio.to_thread(copy.write, piece)
        if copy is not None:
            await asyncio.to_thread(copy.flush)

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
