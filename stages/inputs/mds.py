"""MDS, the shards of Mosaic's streaming: each says in its head what is in it, so no index.json is needed.

u32 samples │ u32 × (samples + 1) where each begins, and the last ends │ JSON about the columns │ samples
a sample: u32 size of each column whose size varies │ the columns end to end
"""

from __future__ import annotations

import json
import struct
from collections.abc import Generator
from dataclasses import dataclass
from typing import cast

import numpy as np

from stages.inputs.lines import decode
from stages.inputs.record import Judge, Record, Refused
from stages.inputs.stream import Got, Steps, Want, take

HEAD_BYTES = 64 << 20
"""The largest head: that of 16 million samples. Writers make shards of 64 MiB in whole."""
_CONFIG_BYTES = 1 << 20
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class _Columns:
    sizes: tuple[int | None, ...]
    """Bytes of each column; None where each value has its own."""
    wanted: int
    encoding: str


def mds_steps(judge: Judge, field: str) -> Steps:
    head = yield from take(_U32.size)
    if len(head) < _U32.size:
        return _short("the head")
    (samples,) = _U32.unpack(head)
    if 4 * (samples + 2) > HEAD_BYTES:
        return Refused("broken_mds", f"{samples} samples: the head may have {HEAD_BYTES} bytes")
    table = yield from take(4 * (samples + 1))
    if len(table) < 4 * (samples + 1):
        return _short("the head")
    begins = np.frombuffer(table, dtype="<u4").astype(np.int64)
    config_bytes = int(begins[0]) - 4 * (samples + 2)
    if not 0 < config_bytes <= _CONFIG_BYTES or (np.diff(begins) < 0).any():
        return Refused("broken_mds", "the places of the samples do not add up")
    config = yield from take(config_bytes)
    if len(config) < config_bytes:
        return _short("the head")
    columns = _columns(config, field)
    if isinstance(columns, Refused):
        return columns
    for row, size in enumerate(np.diff(begins).tolist(), 1):
        record = yield from _sample(judge, row, size, columns, field)
        if isinstance(record, Refused):
            return record
        yield record
    return None


def _sample(
    judge: Judge, row: int, size: int, columns: _Columns, field: str
) -> Generator[Want, Got, Record | Refused]:
    """One sample, of which only the column wanted is held; Refused where the file ends in it."""
    prefix = 4 * sum(width is None for width in columns.sizes)
    head = yield from take(min(prefix, size))
    if len(head) < min(prefix, size):
        return _short(f"sample {row}")
    varying = iter(struct.unpack(f"<{len(head) // 4}I", head[: len(head) // 4 * 4]))
    widths = [next(varying, 0) if width is None else width for width in columns.sizes]
    if prefix + sum(widths) != size:
        got = yield Want(max(0, size - prefix), 0)
        if got.size < size - prefix:
            return _short(f"sample {row}")
        why = Refused("broken_mds", f"its columns have {prefix + sum(widths)} bytes, and it has {size}")
        return judge.refused(row, row, why, head, size)
    before, width = sum(widths[: columns.wanted]), widths[columns.wanted]
    rest = sum(widths[columns.wanted + 1 :])
    skipped = yield Want(before, 0)
    value = yield Want(width, min(width, judge.limit))
    tail = yield Want(rest, 0)
    if skipped.size + value.size + tail.size < size - prefix:
        return _short(f"sample {row}")

    def parse(data: bytes) -> str | Refused:
        return _text(data, columns.encoding, field)

    return judge.document(row, row, value.data, width, parse)


def _text(data: bytes, encoding: str, field: str) -> str | Refused:
    if encoding == "json":
        decoded = decode(data)
        if isinstance(decoded, Refused):
            return decoded
        try:
            value = json.loads(decoded)
        except (ValueError, RecursionError) as error:
            return Refused("broken_json", str(error))
        if not isinstance(value, str):
            return Refused("wrong_type", f"column {field!r}: expected a string, found other JSON")
        data = value.encode("utf-8", "surrogatepass")
    if not data:
        return Refused("empty_text", f"column {field!r} is empty")
    return decode(data)


def _columns(config: bytes, field: str) -> _Columns | Refused:
    try:
        found = json.loads(config)
    except (ValueError, RecursionError) as error:
        return Refused("broken_mds", f"the columns are no JSON: {error}")
    keys = ("column_names", "column_encodings", "column_sizes")
    lists = [found.get(key) if isinstance(found, dict) else None for key in keys]
    if not all(isinstance(values, list) and len(values) == len(lists[0] or ()) for values in lists):
        return Refused("broken_mds", f"the head lacks {', '.join(keys)}, equally many of each")
    names, encodings, sizes = cast("list[list[object]]", lists)
    if not all(size is None or (isinstance(size, int) and 0 <= size < 1 << 32) for size in sizes):
        return Refused("broken_mds", "column_sizes are numbers of bytes or null")
    if field not in names:
        has = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
        return Refused("missing_field", f"no column {field!r}; it has {has}")
    wanted = names.index(field)
    encoding = encodings[wanted]
    if encoding == "pkl":
        return Refused(
            "pickled", f"column {field!r} is pickled: loading that runs what is in it; write str instead"
        )
    if encoding not in ("str", "bytes", "json"):
        return Refused("wrong_type", f"column {field!r}: expected str, bytes or json, found {encoding}")
    # The writer has null for what varies; a reader takes 0 as that too.
    return _Columns(tuple(cast("int | None", size) or None for size in sizes), wanted, str(encoding))


def _short(where: str) -> Refused:
    return Refused("truncated_mds", f"the file ends in the middle of {where}")
