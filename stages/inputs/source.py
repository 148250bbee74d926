"""Reading the inputs: documents in groups, in order, from any state.

    file ─► aiofiles ─► hash ─► (zstd) ─► lines ─► JSON ─┬─► texts ─► group
                                └──────► whole text ─────┘─► bad ───┘

A group ends by count or bytes, never by time: the same inputs give the same groups on any machine.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import aiofiles
from blake3 import blake3

from pipeline import Item, State
from stages.errors import InputError
from stages.inputs.lines import Line, Lines, Refused, decode, text_of
from stages.inputs.record import KEPT_BYTES, Bad, FileDigest, Group
from stages.inputs.scan import InputFile, Inputs
from stages.inputs.zstd import Inflate

READ_BYTES = 1 << 20
SMALL_BYTES = 64 << 10
"""Files up to this size are read many in one hop to a thread; alone, the hops of each would cost 0.4 ms."""
SMALL_FILES = 64
RECORD_BYTES = 8 << 20
"""The largest record by default. Encoding takes 200 bytes of memory for each byte of one text: 1.7 GB for this one."""
GROUP_BYTES = 1 << 20
GROUP_RECORDS = 1 << 10
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """How records are read."""

    field: str = "text"
    """Which field of a JSON line is the document."""
    record_bytes: int = RECORD_BYTES
    """A line, or a file of plain text, that is longer is a bad record."""
    group_bytes: int = GROUP_BYTES
    group_records: int = GROUP_RECORDS

    def __post_init__(self) -> None:
        for name in ("record_bytes", "group_bytes", "group_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class _Record:
    """A document, or why there is none, and where the reading goes on after it."""

    row: int
    stop: int
    size: int
    text: str | None
    bad: Bad | None


class TextSource:
    """Source of Group. A state is `{"file", "row", "offset"}`: the next record, counted in decompressed
    bytes.

    A file that cannot be read raises InputError. Bad records are in the groups: what becomes of them is a policy
    of whoever consumes them.
    """

    def __init__(self, inputs: Inputs, spec: ReadSpec) -> None:
        self._inputs = inputs
        self._spec = spec

    async def read(self, at: State | None) -> AsyncIterator[Item[Group]]:
        first, row, offset = _position(at)
        files = self._inputs.files
        group = _Building(_provenance(self._inputs, first, row))
        small: deque[bytes] = deque()
        for index in range(first, len(files)):
            if not small:
                small = await _read_small(files[index : index + SMALL_FILES])
            reading = _Reading(files[index], self._spec, small.popleft() if small else None)
            async for records in reading.records():
                for record in records:
                    if record.stop <= offset:
                        reading.take_read()
                        continue
                    group.add(record)
                    if group.size >= self._spec.group_bytes or group.records >= self._spec.group_records:
                        yield Item(group.take(reading.take_read()), _state(index, record.row, record.stop))
                        group = _Building(f"{files[index].label}:{record.row + 1}")
            group.finish(FileDigest(index, reading.read_bytes, reading.digest()), reading.take_read())
            row, offset = 0, 0
            if len(group.finished) >= self._spec.group_records:
                yield Item(group.take(0), _state(index + 1, 0, 0))
                group = _Building(_provenance(self._inputs, index + 1, 0))
        if group.finished:
            yield Item(group.take(0), _state(len(files), 0, 0))


class _Building:
    """A group that is being filled."""

    def __init__(self, provenance: str) -> None:
        self._provenance = provenance
        self._texts: list[str] = []
        self._bad: list[Bad] = []
        self._read = 0
        self.finished: list[FileDigest] = []
        self.size = 0
        self.records = 0

    def add(self, record: _Record) -> None:
        if record.text is not None:
            self._texts.append(record.text)
        if record.bad is not None:
            self._bad.append(record.bad)
        self.size += record.size
        self.records += 1

    def finish(self, digest: FileDigest, read: int) -> None:
        self.finished.append(digest)
        self._read += read

    def take(self, read: int) -> Group:
        return Group(
            texts=tuple(self._texts),
            bad=tuple(self._bad),
            finished=tuple(self.finished),
            read_bytes=self._read + read,
            text_bytes=self.size,
            provenance=self._provenance,
        )


class _Reading:
    """One file, from its start to its end; `data` is the whole of it, where it has been read already."""

    def __init__(self, file: InputFile, spec: ReadSpec, data: bytes | None) -> None:
        self._file, self._spec, self._data = file, spec, data
        self._hash = blake3()
        self._taken = 0
        self.read_bytes = 0

    def digest(self) -> str:
        return self._hash.hexdigest()

    def take_read(self) -> int:
        """Bytes read since the last call."""
        fresh, self._taken = self.read_bytes - self._taken, self.read_bytes
        return fresh

    def records(self) -> AsyncIterator[Iterator[_Record]]:
        return {"text": self._whole, "lines": self._lines, "lines.zst": self._zstd_lines}[self._file.kind]()

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self._data is not None:
            if self._data:
                yield self._read(self._data)
            return
        try:
            async with aiofiles.open(self._file.path, "rb", buffering=0) as file:
                while piece := await file.read(READ_BYTES):
                    yield self._read(piece)
        except OSError as error:
            raise InputError(f"{self._file.label}: cannot be read: {error.strerror}") from error

    def _read(self, piece: bytes) -> bytes:
        self._hash.update(piece)
        self.read_bytes += len(piece)
        return piece

    async def _whole(self) -> AsyncIterator[Iterator[_Record]]:
        held: list[bytes] = []
        size = 0
        async for piece in self._pieces():
            if size <= self._spec.record_bytes:
                held.append(piece)
            size += len(piece)
        data = b"".join(held)
        del held
        # One document a file: it stops where the file does, and even an empty file has one.
        yield iter((self._record(1, max(size, 1), size, data, self._plain),))

    async def _lines(self) -> AsyncIterator[Iterator[_Record]]:
        lines = Lines(self._spec.record_bytes)
        row = _Row()
        async for piece in self._pieces():
            yield self._cut(lines.feed(piece), row)
        yield self._cut(lines.finish(), row)

    async def _zstd_lines(self) -> AsyncIterator[Iterator[_Record]]:
        lines = Lines(self._spec.record_bytes)
        row = _Row()
        inflate = Inflate()
        failure: Refused | None = None
        async for piece in self._pieces():
            if failure is not None:
                continue  # Only to hash the rest: what a file holds is known by its bytes.
            inflated = inflate.feed(piece)
            while failure is None:
                try:
                    part = next(inflated, None)
                except ValueError as error:
                    failure = Refused("broken_zstd", str(error))
                    break
                if part is None:
                    break
                yield self._cut(lines.feed(part), row)
        failure = failure or inflate.finish()
        if failure is None:
            yield self._cut(lines.finish(), row)
            return
        # What has come of the last line may look whole and not be: it belongs to the damage.
        rest = next(lines.finish(), None)
        data, size, stop = (b"", 0, row.stop + 1) if rest is None else (rest.data, rest.size, rest.stop)
        yield iter((self._refused(row.next(stop), stop, size, data, failure),))

    def _cut(self, lines: Iterator[Line], row: _Row) -> Iterator[_Record]:
        for line in lines:
            number = row.next(line.stop)
            data = line.data.removeprefix(_BOM) if number == 1 else line.data
            # Of a line over the limit only the beginning is here: that may be blank where the rest is not.
            if data.strip() or line.size > self._spec.record_bytes:
                yield self._record(number, line.stop, line.size, data, self._json)

    def _record(
        self, row: int, stop: int, size: int, data: bytes, parse: Callable[[bytes], str | Refused]
    ) -> _Record:
        if size > (limit := self._spec.record_bytes):
            why = Refused("too_long", f"{size} bytes, the limit is {limit}")
            return self._refused(row, stop, size, data[:KEPT_BYTES], why)
        text = parse(data)
        if isinstance(text, Refused):
            return self._refused(row, stop, size, data, text)
        return _Record(row, stop, size, text, None)

    def _refused(self, row: int, stop: int, size: int, data: bytes, why: Refused) -> _Record:
        bad = Bad(self._file.label, row, why.reason, why.detail, data, size)
        return _Record(row, stop, len(data), None, bad)

    def _plain(self, data: bytes) -> str | Refused:
        text = decode(data.removeprefix(_BOM))
        return Refused("empty_text", "the file is empty") if text == "" else text

    def _json(self, data: bytes) -> str | Refused:
        return text_of(data, self._spec.field)


class _Row:
    """Lines counted from 1, blank ones too, as editors do."""

    def __init__(self) -> None:
        self._row = 0
        self.stop = 0

    def next(self, stop: int) -> int:
        self._row += 1
        self.stop = stop
        return self._row


async def _read_small(files: Sequence[InputFile]) -> deque[bytes]:
    """The contents of the first of `files`, up to one that is large, has grown, or cannot be read.

    That one is left to be read on its own, and to fail in its turn, after what comes before it.
    """

    def read() -> deque[bytes]:
        contents: deque[bytes] = deque()
        for file in small:
            try:
                with Path(file.path).open("rb") as opened:
                    data = opened.read(SMALL_BYTES + 1)
            except OSError:
                break
            if len(data) > SMALL_BYTES:
                break
            contents.append(data)
        return contents

    small = tuple(takewhile(lambda file: file.bytes <= SMALL_BYTES, files))
    return await asyncio.to_thread(read) if len(small) > 1 else deque()


def _state(file: int, row: int, offset: int) -> State:
    return {"file": file, "row": row, "offset": offset}


def _position(at: State | None) -> tuple[int, int, int]:
    if at is None:
        return 0, 0, 0
    file, row, offset = (at.get(key) for key in ("file", "row", "offset"))
    if not (isinstance(file, int) and isinstance(row, int) and isinstance(offset, int)):
        raise ValueError(f"a state of TextSource has file, row and offset, got {at}")
    return file, row, offset


def _provenance(inputs: Inputs, file: int, row: int) -> str:
    return f"{inputs.files[file].label}:{row + 1}" if file < len(inputs.files) else "the inputs' end"
