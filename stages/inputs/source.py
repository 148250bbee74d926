"""Reading the inputs: documents in groups, in order, from any state.

    file ─► pieces ─► hash ─► (gzip, xz, zstd) ─► lines, tar, … ─┬─► texts ─► group
               └──► hash; then columns of Parquet, Arrow ────────┴─► bad ───┘

A group ends by count or bytes, never by time: the same inputs give the same groups on any machine.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from itertools import takewhile
from pathlib import Path

from pipeline import Item, State
from stages.errors import StorageError
from stages.inputs.reading import Reading
from stages.inputs.record import Bad, FileDigest, Group, Record
from stages.inputs.scan import InputFile, Inputs
from stages.inputs.spec import ReadSpec
from stages.storage import Location, Storages, locate

__all__ = ["SMALL_BYTES", "ReadSpec", "TextSource"]

SMALL_BYTES = 64 << 10
"""Files up to this size are read many in one hop to a thread; alone, the hops of each would cost 0.4 ms."""
SMALL_FILES = 64


class TextSource:
    """Source of Group. A state is `{"file", "row", "offset", "documents"}`: how far the file at hand is read (see
    `Record.stop`), and the documents so far.

    A file that cannot be read raises InputError; where the store that it is in does not answer, StorageUnavailable is
    worth another try. Bad records are in the groups: what becomes of them is a policy
    of whoever consumes them.
    """

    def __init__(self, inputs: Inputs, spec: ReadSpec, storages: Storages | None = None) -> None:
        self._inputs = inputs
        self._spec = spec
        self._storages = storages or Storages()

    async def read(self, at: State | None) -> AsyncIterator[Item[Group]]:
        first, row, offset, documents = _position(at)
        files, limit = self._inputs.files, self._spec.limit
        group = _Building(_provenance(self._inputs, first, row))
        small: deque[bytes] = deque()
        for index in range(first, len(files)):
            if not small:
                small = await _read_small(files[index : index + SMALL_FILES], self._storages)
            data = small.popleft() if small else None
            reading = Reading(files[index], self._spec, self._storages, data, offset)
            async with aclosing(reading.records()) as records:
                async for record in records:
                    if record.stop <= offset:
                        reading.take_read()
                        continue
                    group.add(record)
                    documents += record.text is not None
                    if documents == limit:
                        break
                    if group.is_full(self._spec):
                        yield Item(
                            group.take(reading.take_read()), _state(index, record.row, record.stop, documents)
                        )
                        group = _Building(f"{files[index].label}:{record.row + 1}")
            await reading.rest()
            group.finish(FileDigest(index, reading.read_bytes, reading.digest()), reading.take_read())
            if documents == limit:
                break
            row, offset = 0, 0
            if len(group.finished) >= self._spec.group_records:
                yield Item(group.take(0), _state(index + 1, 0, 0, documents))
                group = _Building(_provenance(self._inputs, index + 1, 0))
        if group.finished:
            yield Item(group.take(0), _state(len(files), 0, 0, documents))


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

    def is_full(self, spec: ReadSpec) -> bool:
        return self.size >= spec.group_bytes or self.records >= spec.group_records

    def add(self, record: Record) -> None:
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


async def _read_small(files: Sequence[InputFile], storages: Storages) -> deque[bytes]:
    """The contents of the first of `files`, up to one that is large, has grown, or cannot be read.

    That one is left to be read on its own, and to fail in its turn, after what comes before it.
    """

    async def from_store(location: Location, file: InputFile) -> bytes | None:
        try:
            return (await storages.at(location.root).read(location.path, [(0, file.bytes)]))[0]
        except StorageError:
            return None

    def from_disk() -> deque[bytes]:
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
    if len(small) < 2:
        return deque()
    located = [locate(file.path) for file in small]
    if located[0] is None:
        small = tuple(
            file for file, _ in takewhile(lambda pair: pair[1] is None, zip(small, located, strict=True))
        )
        return await asyncio.to_thread(from_disk)
    places = takewhile(lambda location: location is not None, located)
    asked = (from_store(place, file) for place, file in zip(places, small, strict=False) if place is not None)
    found = await asyncio.gather(*asked)
    return deque(data for data in takewhile(lambda data: data is not None, found) if data is not None)


def _state(file: int, row: int, offset: int, documents: int) -> State:
    return {"file": file, "row": row, "offset": offset, "documents": documents}


def _position(at: State | None) -> tuple[int, int, int, int]:
    if at is None:
        return 0, 0, 0, 0
    file, row, offset, documents = (at.get(key) for key in ("file", "row", "offset", "documents"))
    if not (
        isinstance(file, int)
        and isinstance(row, int)
        and isinstance(offset, int)
        and isinstance(documents, int)
    ):
        raise ValueError(f"a state of TextSource has file, row and offset, and documents, got {at}")
    return file, row, offset, documents


def _provenance(inputs: Inputs, file: int, row: int) -> str:
    return f"{inputs.files[file].label}:{row + 1}" if file < len(inputs.files) else "the inputs' end"
