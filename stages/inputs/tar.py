"""Tar shards, as WebDataset writes them: one sample is the run of members that share a key.

`000017.txt` and `000017.json` are one sample, of the key `000017`. Its documents are its members of text, each whole;
a sample without them has the `field` of its .json members. Lines of .jsonl members are documents always. Nothing is
unpickled: members that would need it are bad records.
"""

from __future__ import annotations

import tarfile
from collections.abc import Generator
from dataclasses import dataclass, replace
from posixpath import basename, dirname

from stages.inputs.lines import Lines, plain_text, text_of
from stages.inputs.record import Judge, Record, Refused
from stages.inputs.stream import BOM, Got, Steps, Want, take
from stages.inputs.suffixes import LINES, TEXTS

_BLOCK = 512
_PIECE_BYTES = 1 << 20
_HEADER_BYTES = 1 << 20
"""The largest extended header, which holds a member's long name."""
_JSON = (".json",)
_JSON_LINES = tuple(suffix for suffix in LINES if suffix not in _JSON)
_EXTENDED = (
    *(tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_PICKLED = (".pyd", ".pickle", ".pkl", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    size: int

    @property
    def is_hidden(self) -> bool:
        return basename(self.name).startswith(".")

    @property
    def key(self) -> str:
        return f"{dirname(self.name)}/{basename(self.name).partition('.')[0]}"

    @property
    def suffix(self) -> str:
        _, dot, last = basename(self.name).lower().rpartition(".")
        return dot + last


class _Sample:
    """What is known of the sample at hand."""

    def __init__(self, member: _Member) -> None:
        self.first = member
        self.suffixes: list[str] = []
        self.has_document = False
        self.waiting: list[tuple[_Member, bytes]] = []
        """Members of JSON: documents if no text comes, else what is said about it."""
        self.waiting_bytes = 0


class Tar:
    """The steps that read a tar file."""

    def __init__(self, judge: Judge, field: str) -> None:
        self._judge = judge
        self._field = field
        self._row = 0
        self._zeros = False

    def steps(self) -> Steps:
        sample: _Sample | None = None
        wrong: Refused | None = None
        while True:
            member = yield from self._header()
            if member is None or isinstance(member, Refused):
                wrong = member
                break
            if member.is_hidden:
                if not (yield from _skip(member)):
                    wrong = _short(member)
                    break
                continue
            if sample is None or sample.first.key != member.key:
                yield from self._end(sample)
                sample = _Sample(member)
            sample.suffixes.append(member.suffix or "no suffix")
            if not (yield from self._member(member, sample)):
                wrong = _short(member)
                break
        # Of a sample that the file's end cuts, what came whole counts.
        yield from self._end(sample, cut=wrong is not None)
        return wrong

    def _header(self) -> Generator[Want, Got, _Member | Refused | None]:
        """The next member that is a file; None at the end."""
        name: str | None = None
        size: int | None = None
        while True:
            block = yield from take(_BLOCK)
            if not block:
                lacks = Refused(
                    "truncated_tar", "the file ends without the blocks of zeros that end an archive"
                )
                return None if self._zeros else lacks
            if len(block) < _BLOCK:
                return Refused("truncated_tar", "the file ends in the middle of a member's header")
            self._zeros = not any(block)
            if self._zeros:
                continue  # archives may be joined end to end
            try:
                info = tarfile.TarInfo.frombuf(block, "utf-8", "backslashreplace")
            except tarfile.HeaderError as error:
                return Refused("broken_tar", f"expected a member's header, found none: {error}")
            if info.type in _EXTENDED:
                if info.size > _HEADER_BYTES:
                    return Refused("broken_tar", f"an extended header of {info.size} bytes")
                data = yield from take(_padded(info.size))
                if len(data) < _padded(info.size):
                    return Refused("truncated_tar", "the file ends in the middle of an extended header")
                data = data[: info.size]
                if info.type == tarfile.GNUTYPE_LONGNAME:
                    name = _name(data.rstrip(b"\0"))
                elif info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                    extended = _extended(data)
                    if isinstance(extended, Refused):
                        return extended
                    name, size = extended.get("path", name), _number(extended.get("size"), size)
                continue
            is_file = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
            member = _Member(name or info.name, info.size if size is None else size)
            if member.size < 0:
                return Refused("broken_tar", f"member {member.name}: a size of {member.size}")
            if is_file and not member.name.endswith("/"):
                return member
            if info.type == tarfile.GNUTYPE_SPARSE:
                return Refused("broken_tar", f"member {member.name}: sparse files are not read")
            # Links, folders and devices may have a size, but only what is no special file has bytes.
            if info.type not in tarfile.SUPPORTED_TYPES and not (yield from _skip(member)):
                return _short(member)
            name = size = None

    def _member(self, member: _Member, sample: _Sample) -> Generator[Want | Record, Got, bool]:
        """Whether it is there whole."""
        if member.suffix in _PICKLED:
            why = Refused("pickled", "loading a pickle runs what is in it; write text or JSON instead")
            return (yield from self._skipped(member, why))
        if member.suffix in _JSON_LINES:
            sample.has_document = True
            return (yield from self._lines(member))
        if member.suffix not in TEXTS and member.suffix not in _JSON:
            return (yield from _skip(member))
        got = yield Want(_padded(member.size), min(member.size, self._judge.limit))
        if got.size < _padded(member.size):
            return False
        if member.suffix in TEXTS:
            sample.has_document = True
            sample.waiting.clear()
            yield self._document(member, got.data)
        elif not sample.has_document:
            sample.waiting.append((member, got.data))
            sample.waiting_bytes += len(got.data)
            if sample.waiting_bytes > self._judge.limit:
                # Holding more would take unbounded memory: it is no sample of text with settings beside it.
                yield from self._settle(sample)
        return True

    def _skipped(self, member: _Member, why: Refused) -> Generator[Want | Record, Got, bool]:
        whole = yield from _skip(member)
        self._row += 1
        yield self._named(member).refused(self._row, self._row, why, b"", member.size, at=1)
        return whole

    def _lines(self, member: _Member) -> Generator[Want | Record, Got, bool]:
        lines = Lines(self._judge.limit)
        judge = self._named(member)
        number = 0
        left = member.size
        while left:
            got = yield Want(min(left, _PIECE_BYTES), _PIECE_BYTES)
            left -= got.size
            ended = [*lines.feed(got.data), *([] if left else lines.finish())]
            for line in ended:
                number += 1
                data = line.data.removeprefix(BOM) if number == 1 else line.data
                if data.strip() or line.size > judge.limit:
                    self._row += 1
                    yield _at(judge.document(self._row, self._row, data, line.size, self._json), number)
            if got.size == 0:
                return False
        padding = _padded(member.size) - member.size
        return (yield Want(padding, 0)).size == padding

    def _document(self, member: _Member, data: bytes) -> Record:
        self._row += 1
        parse = self._json if member.suffix in _JSON else plain_text
        return _at(self._named(member).document(self._row, self._row, data, member.size, parse), 1)

    def _settle(self, sample: _Sample) -> Generator[Record, Got, None]:
        for member, data in sample.waiting:
            sample.has_document = True
            yield self._document(member, data)
        sample.waiting.clear()
        sample.waiting_bytes = 0

    def _end(self, sample: _Sample | None, cut: bool = False) -> Generator[Want | Record, Got, None]:
        if sample is None:
            return
        for record in self._settle(sample):
            # Of a sample that is cut, the text may have been to come: then its JSON need not have the field.
            if not cut or record.text is not None:
                yield record
        if not sample.has_document and not cut and not set(sample.suffixes) & set(_PICKLED):
            self._row += 1
            found = ", ".join(dict.fromkeys(sample.suffixes))
            why = Refused(
                "missing_field", f"the sample has no member of text, JSON or JSON lines; it has {found}"
            )
            yield self._named(sample.first).refused(self._row, self._row, why, at=1)

    def _named(self, member: _Member) -> Judge:
        return Judge(f"{self._judge.label}/{member.name}", self._judge.limit)

    def _json(self, data: bytes) -> str | Refused:
        return text_of(data.removeprefix(BOM), self._field)


def _at(record: Record, row: int) -> Record:
    """Name the row of the member, where the record is bad."""
    return record if record.bad is None else replace(record, bad=replace(record.bad, row=row))


def _skip(member: _Member) -> Generator[Want, Got, bool]:
    return (yield Want(_padded(member.size), 0)).size == _padded(member.size)


def _short(member: _Member) -> Refused:
    return Refused("truncated_tar", f"the file ends in the middle of the member {member.name}")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _name(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _number(text: str | None, otherwise: int | None) -> int | None:
    return otherwise if text is None else int(text)


def _extended(data: bytes) -> dict[str, str] | Refused:
    """Records of `LENGTH key=value\\n`; of them, those that are needed."""
    found: dict[str, str] = {}
    while data:
        digits, space, _ = data[:24].partition(b" ")
        if not (space and digits.isdigit() and len(digits) < int(digits) <= len(data)):
            return Refused("broken_tar", "an extended header that does not add up")
        record, data = data[len(digits) + 1 : int(digits)], data[int(digits) :]
        key, _, value = record.rstrip(b"\n").partition(b"=")
        if key == b"size" and not (value.isdigit() and len(value) < 20):
            return Refused("broken_tar", f"an extended header with the size {_name(value)!r}")
        if key in (b"path", b"size"):
            found[_name(key)] = _name(value)
    return found
