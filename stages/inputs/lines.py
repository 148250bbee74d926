"""Lines out of pieces of bytes, and texts out of lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from stages.inputs.record import KEPT_BYTES, Refused

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    data: bytes
    """Without its newline; where the line is longer than the limit, its beginning."""
    size: int
    """Bytes of the whole line, the newline left out."""
    stop: int
    """Offset in the file's (decompressed) bytes at which the next line begins."""


class Lines:
    """Cuts pieces into lines and holds at most `limit` bytes of a line, however long it is."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._offset = 0

    @property
    def held_bytes(self) -> int:
        """Memory that the line at hand takes."""
        return sum(map(len, self._parts))

    def feed(self, piece: bytes) -> Iterator[Line]:
        *ended, rest = piece.split(b"\n")
        for part in ended:
            yield self._end(part, newline=1)
        self._hold(rest)

    def finish(self) -> Iterator[Line]:
        """The last line, where no newline ends it."""
        if self._size:
            yield self._end(b"", newline=0)

    def _end(self, part: bytes, newline: int) -> Line:
        if self._size:
            self._hold(part)
            data, size = b"".join(self._parts), self._size
        else:
            data, size = part, len(part)
        if size > self._limit:
            data = data[: min(self._limit, KEPT_BYTES)]
        self._parts.clear()
        self._size = 0
        self._offset += size + newline
        return Line(data, size, self._offset)

    def _hold(self, part: bytes) -> None:
        if not part:
            return
        # Once over the limit the line is refused whatever follows: count, but hold no more of it.
        if self._size <= self._limit:
            self._parts.append(part)
        self._size += len(part)


def decode(data: bytes) -> str | Refused:
    """Plain text of a file, a line or a value."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = data[error.start : error.end].hex(" ")
        return Refused(
            "invalid_utf8", f"expected UTF-8, found {found} at byte {error.start} ({error.reason})"
        )


def plain_text(data: bytes) -> str | Refused:
    """The document that a whole file of text is, without its byte order mark."""
    text = decode(data.removeprefix(_BOM))
    return Refused("empty_text", "the file is empty") if text == "" else text


def text_of(line: bytes, field: str) -> str | Refused:
    """The document in a line of JSON."""
    decoded = decode(line)
    if isinstance(decoded, Refused):
        return decoded
    try:
        record = json.loads(decoded)
    except json.JSONDecodeError as error:
        return Refused("broken_json", f"{error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        return Refused("broken_json", str(error))
    if not isinstance(record, dict):
        return Refused("wrong_type", f"expected an object with the field {field!r}, found {_type(record)}")
    if field not in record:
        return Refused("missing_field", f"no field {field!r}; it has {_keys(record)}")
    text = record[field]
    if not isinstance(text, str):
        return Refused("wrong_type", f"field {field!r}: expected a string, found {_type(text)}")
    if not text:
        return Refused("empty_text", f"field {field!r} is empty")
    # Only an escape can bring half a surrogate pair into a text; UTF-8 cannot say it, so no tokenizer takes
    # it.
    if "\\u" in decoded and not is_encodable(text):
        return Refused("invalid_utf8", f"field {field!r} holds half of a surrogate pair")
    return text


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can say it: not where it holds half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _keys(record: dict[str, object]) -> str:
    keys = ", ".join(repr(key) for key in list(record)[:5])
    return keys + (", …" if len(record) > 5 else "") if record else "no fields"
