"""`tf.train.Example`, read as protobuf's wire format says: just what a feature of bytes needs.

Example   { 1: Features }             Feature   { 1: BytesList, 2: FloatList, 3: Int64List }
Features  { 1: repeated { 1: name, 2: Feature } }      BytesList { 1: repeated bytes }
"""

from __future__ import annotations

from collections.abc import Iterator

from stages.inputs.lines import decode
from stages.inputs.record import Refused

_LENGTHS = {1: 8, 5: 4}
_KINDS = {2: "floats", 3: "integers"}


def example_text(data: bytes, field: str) -> str | Refused:
    """The document in a serialised Example."""
    try:
        features = _features(data)
        if field not in features:
            names = ", ".join(map(repr, list(features)[:5]))
            more = ", …" if len(features) > 5 else ""
            return Refused("missing_field", f"no feature {field!r}; it has {names + more or 'none'}")
        kinds = [(number, value) for number, value in _fields(features[field]) if number in (1, 2, 3)]
        if not kinds or kinds[-1][0] != 1:  # of a oneof, the last counts
            found = _KINDS[kinds[-1][0]] if kinds else "nothing"
            return Refused("wrong_type", f"feature {field!r}: expected bytes, found {found}")
        values = [value for number, value in _fields(_bytes(kinds[-1][1])) if number == 1]
        if len(values) != 1:
            return Refused("wrong_type", f"feature {field!r}: expected one value, found {len(values)}")
        value = _bytes(values[0])
    except ValueError as error:
        return Refused("broken_tfrecord", f"expected a tf.train.Example: {error}")
    if not value:
        return Refused("empty_text", f"feature {field!r} is empty")
    return decode(value)


def _features(data: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for number, features in _fields(data):
        if number != 1:
            continue
        for inner, entry in _fields(_bytes(features)):
            if inner != 1:
                continue
            name, feature = b"", b""
            for part, value in _fields(_bytes(entry)):
                if part == 1:
                    name = _bytes(value)
                elif part == 2:
                    feature = _bytes(value)
            found[name.decode("utf-8", "backslashreplace")] = feature
    return found


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("expected a message, found a number")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Field numbers and values of one message. Raises ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise ValueError(f"field 0 at byte {at}")
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in _LENGTHS:
            size = _LENGTHS[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if size > len(data) - at:
            raise ValueError(f"a field of {size} bytes at byte {at}, where {len(data) - at} are left")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number of more than 10 bytes at byte {at}")
