"""What comes out of the inputs: documents in groups, and the records that are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Reason: TypeAlias = Literal[
    "invalid_utf8",
    "broken_json",
    "missing_field",
    "wrong_type",
    "empty_text",
    "too_long",
    "truncated_zstd",
    "broken_zstd",
    "truncated_gzip",
    "broken_gzip",
    "truncated_xz",
    "broken_xz",
    "broken_parquet",
    "broken_arrow",
    "truncated_tar",
    "broken_tar",
    "truncated_tfrecord",
    "broken_tfrecord",
    "truncated_mds",
    "broken_mds",
    "pickled",
    "broken_chat",
]

KEPT_BYTES = 64 << 10
"""Of a record that is too long, this much is kept aside: the input still has the whole."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why bytes are no document."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that breaks the rules."""

    file: str
    """The input's label; of a member of a tar file, the label, a slash and the member's name."""
    row: int
    """The line, row or record, counted from 1; 1 for a file of plain text."""
    reason: Reason
    detail: str
    """What was expected and what was found, in words."""
    record: bytes
    """As it stood in the input, of one that is too long its beginning; empty where bytes that stand for no record are
    damaged."""
    size: int
    """Bytes of the whole record."""

    @property
    def provenance(self) -> str:
        return f"{self.file}:{self.row}"


@dataclass(frozen=True, slots=True)
class Record:
    """A document, or why there is none, and where the reading goes on after it."""

    row: int
    """Which record of the file it is, counted from 1; of lines, blank ones are counted too."""
    stop: int
    """Grows from record to record: an offset in the file's inflated bytes, or, where records have none, `row`."""
    size: int
    text: str | None
    bad: Bad | None


@dataclass(frozen=True, slots=True)
class Judge:
    """Makes records of one file, or of a member of one: a document where the bytes are one, else why not."""

    label: str
    limit: int
    """Bytes of the largest record."""

    def document(
        self, row: int, stop: int, data: bytes, size: int, parse: Callable[[bytes], str | Refused]
    ) -> Record:
        """`data` may be the beginning only where `size`, that of the whole, is over the limit."""
        if size > self.limit:
            why = Refused("too_long", f"{size} bytes, the limit is {self.limit}")
            return self.refused(row, stop, why, data[:KEPT_BYTES], size)
        text = parse(data)
        if isinstance(text, Refused):
            return self.refused(row, stop, text, data, size)
        return Record(row, stop, size, text, None)

    def refused(
        self, row: int, stop: int, why: Refused, data: bytes = b"", size: int = 0, at: int | None = None
    ) -> Record:
        """`at` is the row to name where it is not that of the file: a line of a member, say."""
        bad = Bad(self.label, row if at is None else at, why.reason, why.detail, data, size)
        return Record(row, stop, len(data), None, bad)


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file that has been read to its end turned out to hold."""

    index: int
    """In Inputs.files."""
    bytes: int
    blake3: str


@dataclass(frozen=True, slots=True)
class Group:
    """Documents that travel together, in the inputs' order, large enough that a hop between threads costs
    little."""

    texts: tuple[str, ...]
    bad: tuple[Bad, ...]
    finished: tuple[FileDigest, ...]
    """The files whose end lies in this group."""
    read_bytes: int
    """Bytes of input (compressed, where it is) read since the group before: for progress."""
    text_bytes: int
    """Bytes of the records, decompressed."""
    provenance: str
    """Where the group begins: `shard.jsonl:1234`."""
