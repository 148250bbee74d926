"""Formats that are read from front to back: inflated pieces in, records out.

    pieces ─► Parser.feed ─► records          the end ─► Parser.finish ─► the last ones

A binary format is written as a generator that asks for bytes (`Want`), as if it read a file, and yields records;
`Pull` runs it on the pieces as they come, however they are cut.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from stages.inputs.lines import Line, Lines, plain_text, text_of
from stages.inputs.record import Judge, Record, Refused

BOM = b"\xef\xbb\xbf"


class Parser(Protocol):
    """From a file's inflated bytes to its records. `feed` and `finish` are iterated to their ends."""

    def feed(self, piece: bytes) -> Iterator[Record]: ...

    def finish(self, damage: Refused | None) -> Iterator[Record]:
        """`damage` says why no more bytes come, where it is not that the file is over."""
        ...


class JsonLines:
    """A record a line; blank lines are none."""

    def __init__(self, judge: Judge, field: str) -> None:
        self._judge = judge
        self._field = field
        self._lines = Lines(judge.limit)
        self._row = 0
        self._stop = 0

    def feed(self, piece: bytes) -> Iterator[Record]:
        return self._records(self._lines.feed(piece))

    def finish(self, damage: Refused | None) -> Iterator[Record]:
        if damage is None:
            yield from self._records(self._lines.finish())
            return
        # What has come of the last line may look whole and not be: it belongs to the damage.
        rest = next(self._lines.finish(), None)
        data, size, stop = (
            (b"", 0, self._stop + 1)
            if rest is None
            else (rest.data, rest.size, max(rest.stop, self._stop + 1))
        )
        yield self._judge.refused(self._row + 1, stop, damage, data, size)

    def _records(self, lines: Iterator[Line]) -> Iterator[Record]:
        for line in lines:
            self._row += 1
            self._stop = line.stop
            data = line.data.removeprefix(BOM) if self._row == 1 else line.data
            # Of a line over the limit only the beginning is here: that may be blank where the rest is not.
            if data.strip() or line.size > self._judge.limit:
                yield self._judge.document(self._row, line.stop, data, line.size, self._json)

    def _json(self, data: bytes) -> str | Refused:
        return text_of(data, self._field)


class WholeText:
    """One document a file: it stops where the file does, and even an empty file has one."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Record]:
        if self._size <= self._judge.limit:
            self._held.append(piece)
        self._size += len(piece)
        return iter(())

    def finish(self, damage: Refused | None) -> Iterator[Record]:
        data = b"".join(self._held)
        self._held.clear()
        stop = max(self._size, 1)
        if damage is None:
            yield self._judge.document(1, stop, data, self._size, plain_text)
        else:
            yield self._judge.refused(1, stop, damage, data[: self._judge.limit], self._size)


@dataclass(frozen=True, slots=True)
class Want:
    """The next `size` bytes, of which only the first `keep` matter."""

    size: int
    keep: int


@dataclass(frozen=True, slots=True)
class Got:
    data: bytes
    size: int
    """Bytes that came: fewer than wanted only where the file ends."""


Steps: TypeAlias = Generator[Want | Record, Got, Refused | None]
"""Ends with what is wrong with the file, if anything: nothing after that is read."""


def take(size: int) -> Generator[Want, Got, bytes]:
    """The next `size` bytes, fewer where the file ends."""
    return (yield Want(size, size)).data


class Pull:
    """Parser that runs `Steps`. A file that ends too early, or whose steps end with a reason, has a bad record last."""

    def __init__(self, judge: Judge, steps: Steps) -> None:
        self._judge = judge
        self._steps = steps
        self._want: Want | None = None
        self._got = 0
        self._kept = bytearray()
        self._row = 0
        self._stop = 0
        self._started = self._ended = False
        self._wrong: Refused | None = None

    def feed(self, piece: bytes) -> Iterator[Record]:
        yield from self._start()
        view = memoryview(piece)
        while view and self._want is not None:
            fresh = min(len(view), self._want.size - self._got)
            keep = max(0, min(fresh, self._want.keep - self._got))
            self._kept += view[:keep]
            self._got += fresh
            view = view[fresh:]
            if self._got == self._want.size:
                yield from self._answer()

    def finish(self, damage: Refused | None) -> Iterator[Record]:
        yield from self._start()
        while self._want is not None:
            yield from self._answer()
        wrong = damage or self._wrong
        if wrong is not None:
            yield self._judge.refused(self._row + 1, self._stop + 1, wrong)

    def _start(self) -> Iterator[Record]:
        if not self._started:
            self._started = True
            yield from self._run(None)

    def _answer(self) -> Iterator[Record]:
        got = Got(bytes(self._kept), self._got)
        self._kept.clear()
        self._got = 0
        return self._run(got)

    def _run(self, got: Got | None) -> Iterator[Record]:
        self._want = None
        try:
            asked = next(self._steps) if got is None else self._steps.send(got)
            while isinstance(asked, Record) or asked.size == 0:
                if isinstance(asked, Record):
                    self._row, self._stop = asked.row, asked.stop
                    yield asked
                asked = self._steps.send(Got(b"", 0))
            self._want = asked
        except StopIteration as ended:
            self._wrong = ended.value
