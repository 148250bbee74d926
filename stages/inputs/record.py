"""What comes out of the inputs: documents in groups, and the records that are none."""

from __future__ import annotations

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
]

KEPT_BYTES = 64 << 10
"""Of a record that is too long, this much is kept aside: the input still has the whole."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that breaks the rules."""

    file: str
    row: int
    """The line, counted from 1; 1 for a file of plain text."""
    reason: Reason
    detail: str
    """What was expected and what was found, in words."""
    record: bytes
    """As it stood in the input, of one that is too long its beginning."""
    size: int
    """Bytes of the whole record."""

    @property
    def provenance(self) -> str:
        return f"{self.file}:{self.row}"


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
