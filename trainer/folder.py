"""A run's folder: config.toml (as resolved), metrics.jsonl, log.jsonl, versions/."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline import JSON
from stages.storage import sync_folder
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
        if (self.path / "corpus.json").exists():
            raise ConfigError(f"run.dir {self.path}: holds a corpus; a run needs a folder of its own")
        made = [path for path in (self.path, *self.path.absolute().parents) if not path.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for path in made:
                # Else a power cut could take the folder, with versions in it that were acknowledged.
                sync_folder(path.parent)
        except OSError as error:
            raise ConfigError(
                f"run.dir {self.path}: cannot be made: {error.strerror}; name a folder that can be written"
            ) from error

    def write_config(self, text: str) -> None:
        with replacing(self.config) as fresh:
            fresh.write(text)

    def cut_metrics(self, step: int) -> None:
        """Keep the lines up to `step`: what the resumed run repeats replaces what the ended one had written."""
        if self.metrics.exists():
            with replacing(self.metrics) as fresh:
                for line in _lines(self.metrics):
                    done = _step(line)
                    if done is not None and done <= step:
                        fresh.write(line)


class JsonLines:
    """Appends one object a line, each handed to the kernel at once: a killed process loses none that it wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        if self._file.tell() and not _ends_a_line(path):
            # A kill cut the last line short: the next one must not be glued to it.
            self._file.write(b"\n")

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

    def sync(self) -> None:
        """Make what was written outlive a power cut."""
        os.fsync(self._file.fileno())

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


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A file that takes the place of `path`, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise TrainingFailed(f"{path}: cannot be written: {error.strerror}") from error


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from file


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _step(line: str) -> int | None:
    """The step of a metrics line; None for one that a kill cut short."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) and line.endswith("\n") else None
