"""A sink for dropped items: one line of JSON each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import TextIO

from .policy import Dropped


class Quarantine:
    """Appends the records of dropped items to a file that its owner alone may read (mode 0600).

    Each line is `{"stage", "index", "reason", "provenance"}`. A line is written out at once, so that a kill loses
    none; after a resume, records of items behind the last one used come again.
    """

    def __init__(self, path: str | Path) -> None:
        """Open `path` for appending, and make it if it is not there. Raises OSError."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._file: TextIO = os.fdopen(
            descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="\n"
        )

    def put(self, record: Dropped, /) -> None:
        """Append one record."""
        failure = record.failure
        line = {
            "stage": failure.stage,
            "index": failure.index,
            "reason": failure.reason,
            "provenance": failure.provenance,
        }
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Quarantine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
