"""Records that a corpus keeps aside: what they were, where they stood, and why they were not packed."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import cast

from pipeline import State
from stages.corpus.growing import FileMark, GrowingFile, NotResumable
from stages.corpus.meta import FileMeta, QuarantineMeta
from stages.inputs.record import Bad
from stages.storage import writing

FILE_MODE = 0o600
"""A record may be bad because something private has slipped into it."""


class Quarantine:
    """Writes one JSON line a record; the file appears with the first one. Raises OutputError, OutputFull."""

    def __init__(self, path: Path, at: State | None = None) -> None:
        """`at`: a mark to go on from. Raises NotResumable."""
        self._path = path
        self._file: GrowingFile | None = None
        self._reasons: Counter[str] = Counter()
        match at:
            case None:
                pass
            case {"file": None}:
                # Begun after the moment that this one has gone on from.
                with writing(path):
                    path.unlink(missing_ok=True)
            case {"file": file, "reasons": dict(reasons)}:
                self._reasons.update({reason: cast("int", count) for reason, count in reasons.items()})
                self._file = GrowingFile(path, FILE_MODE, at=FileMark.parse(file))
            case _:
                raise NotResumable(f"no mark of a quarantine: {at!r}")

    def __len__(self) -> int:
        return self._reasons.total()

    def add(self, bad: Bad) -> None:
        if self._file is None:
            self._file = GrowingFile(self._path, FILE_MODE)
        self._file.write(_line(bad))
        self._reasons[bad.reason] += 1

    def mark(self) -> State:
        """Make durable what is kept so far, and say how to come back to this moment."""
        file = None if self._file is None else self._file.mark().state()
        return {"file": file, "reasons": dict(self._reasons)}

    def finish(self) -> QuarantineMeta | None:
        """Sync and close; None where there was nothing to keep."""
        if self._file is None:
            return None
        with self._file as file:
            pass
        return QuarantineMeta(
            file=FileMeta.of(file), records=len(self), reasons=dict(sorted(self._reasons.items()))
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _line(bad: Bad) -> bytes:
    record = {"file": bad.file, "row": bad.row, "reason": bad.reason, "detail": bad.detail, "bytes": bad.size}
    try:
        record["record"] = bad.record.decode()
    except UnicodeDecodeError:
        record["record_base64"] = base64.b64encode(bad.record).decode()
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"
