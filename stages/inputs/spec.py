"""What a reader of inputs is told."""

from __future__ import annotations

from dataclasses import dataclass

RECORD_BYTES = 8 << 20
"""The largest record by default. Encoding takes 200 bytes of memory for each byte of one text: 1.7 GB for this one."""
GROUP_BYTES = 1 << 20
GROUP_RECORDS = 1 << 10


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """How records are read."""

    field: str = "text"
    """Which field of a JSON line, column of a table or feature of an Example is the document."""
    record_bytes: int = RECORD_BYTES
    """A record that is longer, a line, a value or a file of plain text, is bad."""
    group_bytes: int = GROUP_BYTES
    group_records: int = GROUP_RECORDS
    limit: int | None = None
    """Documents after which nothing more is read, but for the rest of the file at hand, to hash it; None for all."""

    def __post_init__(self) -> None:
        for name in ("record_bytes", "group_bytes", "group_records"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be >= 1, got {self.limit}")
