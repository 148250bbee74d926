"""The folder that a corpus is written into: who may write there, what may lie there, and when it counts.

claim ─► empty, or a killed writer's leftovers (removed) ─► packing.json ─► files … ─► corpus.json ─► done
    ├──► a finished corpus: `existing`
    └──► anything else: refused, untouched
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import State
from stages.corpus.meta import MARKER, NAME, CorpusMeta, read_meta
from stages.corpus.stores import STORES
from stages.errors import OutputTaken
from stages.storage import locked, publish, sync_folder, writing

TOKENIZER_FILE = "tokenizer.json"
QUARANTINE_FILE = "quarantine.jsonl"

HASHES_FILE = "hashes.bin"
FILES_FILE = "files.jsonl"
FILES_SPOOL = "files.spool"
VAL_FOLDER = "val"

_OURS = {
    TOKENIZER_FILE,
    QUARANTINE_FILE,
    HASHES_FILE,
    FILES_FILE,
    FILES_SPOOL,
    f"{NAME}.draft",
    f"{MARKER}.draft",
}


_NUMBERED = re.compile(r"(hashes-\d{5,}\.bin|quarantine-\d{5,}\.jsonl)")


def numbered(name: str, generation: int) -> str:
    """The name that a file has after so many appends: each writes its own, beside what readers may be opening."""
    stem, dot, suffix = name.rpartition(".")
    return name if not generation else f"{stem}-{generation:05d}{dot}{suffix}"


class Output:
    """A claimed folder. What `commit` has not made a corpus is removed when the claim ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.existing: CorpusMeta | None = None
        """The finished corpus that lies there already: it is left as it is, or appended to."""
        self.unfinished: State | None = None
        """What a killed writer was at, as it told `begin`."""
        self.keep = False
        """Whether what is not committed stays when the claim ends: set once there is something to go on from."""
        self._begun = False
        self._committed = False

    def begin(self, command: State | None = None) -> None:
        """Make the folder empty, but for a finished corpus, and mark it as one that is being written. `command`: what
        for, plain data, for `unfinished` of whoever comes after a kill; one that appends says so by a true `append`."""
        self._begun = True
        with writing(self.folder):
            # Marked before anything is removed, and told what for after it: leftovers are never taken for another's.
            (self.folder / MARKER).touch()
            (self.folder / MARKER).write_bytes(b"")
        self._sweep(self.existing)
        sync_folder(self.folder)
        if command is not None:
            publish(self.folder / MARKER, json.dumps(command).encode())

    def commit(self, meta: CorpusMeta) -> None:
        """Let the corpus count, and remove what only its writing needed. Its files must have been synced."""
        sync_folder(self.folder)
        publish(self.folder / NAME, meta.to_json())
        self._committed = True
        self._sweep(meta)
        _unmark(self.folder)

    def settle(self) -> None:
        """Remove what a writer has left beside the finished corpus."""
        self._sweep(self.existing)
        _unmark(self.folder)
        self.unfinished = None

    def _sweep(self, meta: CorpusMeta | None) -> None:
        """Remove what does not belong to the corpus `meta`, or everything."""
        kept = set[str]()
        if meta is not None:
            kept = {NAME, meta.tokenizer.name, *(file.name for file in meta.files())}
        with writing(self.folder):
            for path in _leftovers(self.folder):
                if path.name not in kept and not (meta and STORES[meta.store].keeps(path.name)):
                    path.unlink()

    def inspect(self) -> None:
        names = sorted(entry.name for entry in self.folder.iterdir())
        if NAME in names:
            self.existing = read_meta(self.folder)
            self.unfinished = _command(self.folder / MARKER)
            if MARKER in names and not (self.unfinished and self.unfinished.get("append")):
                self.settle()  # after a writer that was killed between the commit and its last step
            return
        self.unfinished = _command(self.folder / MARKER)
        foreign = [
            name
            for name in names
            if not (MARKER in names and (name in {MARKER, VAL_FOLDER} or _is_ours(name)))
        ]
        if foreign:
            raise OutputTaken(
                f"{self.folder}: holds {foreign[0]!r}{_more(foreign)}, which no pack has written; "
                "choose an empty or a new folder for --out"
            )

    def clear(self) -> None:
        """Remove what has not become a corpus, or part of it."""
        if self._begun and not self._committed and not self.keep:
            # The marker goes last: as long as anything else is left, the folder is recognised as unfinished.
            self.settle()


@contextmanager
def claimed(folder: Path) -> Iterator[Output]:
    """Hold `folder`, made where it is missing, for this process alone.

    Raises OutputBusy, OutputTaken, OutputError, and what read_meta raises about a corpus that lies there.
    """
    with writing(folder):
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        output = Output(folder)
        with writing(folder):
            output.inspect()
        try:
            yield output
        finally:
            with writing(folder):
                output.clear()
                if made and not any(folder.iterdir()):
                    folder.rmdir()


def _command(marker: Path) -> State | None:
    try:
        command = json.loads(marker.read_bytes())
    except (OSError, ValueError):
        return None
    return command if isinstance(command, dict) else None


def _is_ours(name: str) -> bool:
    return (
        name in _OURS
        or _NUMBERED.fullmatch(name) is not None
        or any(store.owns(name) for store in STORES.values())
    )


def _leftovers(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _is_ours(path.name) and not path.is_dir())


def _unmark(folder: Path) -> None:
    marker = folder / MARKER
    with writing(marker):
        marker.unlink(missing_ok=True)
    sync_folder(folder)


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def discard(folder: Path) -> None:
    """Remove what a killed writer has left of a corpus that belongs to another one: its files alone."""
    with writing(folder):
        if folder.is_dir() and not folder.is_symlink():
            for path in (*_leftovers(folder), folder / NAME, folder / MARKER):
                path.unlink(missing_ok=True)
            folder.rmdir()
