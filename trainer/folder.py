"""A run's folder: config.toml (as resolved), metrics.jsonl, log.jsonl, versions/."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline import JSON
from trainer.errors import ConfigError, TrainingFailed


class RunFolder:
    """Paths of a run and the writing of its small files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.log = path / "log.jsonl"
        self.versions = path / "versions"

    def make(self) -> None:
        """Raises ConfigError where it cannot be made."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"run.dir {self.path}: cannot be made: {error.strerror}; name a folder that can be written"
            ) from error

    def write_config(self, text: str) -> None:
        replace(self.config, text)

    def cut_metrics(self, step: int) -> None:
        """Keep the lines up to `step`: what the resumed run repeats replaces what the ended one had written."""
        kept = [
            line for line in _lines(self.metrics) if _step(line) is not None and (_step(line) or 0) <= step
        ]
        replace(self.metrics, "".join(kept))


class JsonLines:
    """Appends one object a line, each handed to the kernel at once: a killed process loses none that it wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, record: dict[str, JSON]) -> None:
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        try:
            written = self._file.write(line)
        except OSError as error:
            raise TrainingFailed(
                f"{self._path}: {error.strerror}; make room and start again: it resumes"
            ) from error
        if written != len(line):
            raise TrainingFailed(f"{self._path}: no space left; make room and start again: it resumes")

    def close(self) -> None:
        self._file.close()


class RunLog:
    """log.jsonl: what happened to a run, an event a line."""

    def __init__(self, folder: RunFolder, run_id: str, rank: int) -> None:
        self._lines, self._run, self._rank = JsonLines(folder.log), run_id, rank

    def event(self, event: str, **fields: JSON) -> None:
        self._lines.write(
            {"time": round(time.time(), 3), "run": self._run, "rank": self._rank, "event": event, **fields}
        )

    def close(self) -> None:
        self._lines.close()


def replace(path: Path, text: str) -> None:
    """Write `path` whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise TrainingFailed(f"{path}: cannot be written: {error.strerror}") from error


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file


def _step(line: str) -> int | None:
    """The step of a metrics line; None for one that a kill cut short."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) and line.endswith("\n") else None
