"""Texts out of Arrow's arrays, whatever the file they came from; nothing that it says is believed unchecked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, cast

import pyarrow as pa

from stages.inputs.lines import decode
from stages.inputs.record import KEPT_BYTES, Judge, Record, Refused

Rows: TypeAlias = Iterator[list[Record]]
Column: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"

DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What pyarrow raises about a file that is damaged; an OSError with a number is the system's."""

_BYTES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


def damaged(error: Exception) -> str:
    """The damage in words. Raises the error itself where it is about reading and not about what was read."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    return str(error)


def refusal(schema: pa.Schema, field: str) -> Refused | None:
    """Why a table has no column of texts called `field`, if it has none."""
    count = len(schema.get_all_field_indices(field))
    if count == 0:
        names = ", ".join(map(repr, schema.names[:5])) + (", …" if len(schema.names) > 5 else "")
        return Refused("missing_field", f"no column {field!r}; it has {names or 'none'}")
    if count > 1:
        return Refused("wrong_type", f"{count} columns are called {field!r}")
    found = schema.field(field).type
    inner = found.value_type if isinstance(found, pa.DictionaryType) else found
    if inner not in _BYTES and inner not in _BYTES.values():
        return Refused("wrong_type", f"column {field!r}: expected strings, found {found}")
    return None


def values(array: Column) -> Iterator[pa.Buffer | None]:
    """The bytes of each value, not copied. Raises pa.ArrowInvalid where the array is damaged.

    A string that is no UTF-8 is a bad record, and not a bad array: strings are looked at as bytes.
    """
    if isinstance(array, pa.DictionaryArray):
        array.indices.validate(full=True)
        words = list(values(array.dictionary))
        for index in array.indices.to_pylist():
            if index is None:
                yield None
            elif 0 <= index < len(words):
                yield words[index]
            else:
                raise pa.ArrowInvalid(f"index {index} into a dictionary of {len(words)}")
        return
    plain = array.view(_BYTES[array.type]) if array.type in _BYTES else array
    plain.validate(full=True)
    for scalar in plain:
        yield cast("pa.BinaryScalar", scalar).as_buffer()


def records(judge: Judge, array: Column, field: str, rows_before: int) -> list[Record]:
    """A record for each value of a column."""

    def parse(data: bytes) -> str | Refused:
        return decode(data) if data else Refused("empty_text", f"column {field!r} is empty")

    found: list[Record] = []
    for row, value in enumerate(values(array), rows_before + 1):
        if value is None:
            why = Refused("wrong_type", f"column {field!r}: expected a string, found null")
            found.append(judge.refused(row, row, why))
        else:
            kept = value if value.size <= judge.limit else value.slice(0, min(value.size, KEPT_BYTES))
            found.append(judge.document(row, row, kept.to_pybytes(), value.size, parse))
    return found
