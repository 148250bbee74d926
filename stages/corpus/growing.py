"""Files that a killed writer's successor goes on with: their length and hash at a moment, and how to get back there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from blake3 import blake3

from pipeline import State
from stages.errors import StagesError
from stages.storage import DurableFile, writing

_PIECE_BYTES = 4 << 20


class NotResumable(StagesError):
    """What lies there is not what was recorded, after a power cut for instance: begin anew."""


@dataclass(frozen=True, slots=True)
class FileMark:
    """A file as it was at a moment; it may only have grown since."""

    bytes: int
    blake3: str

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError(f"a file has 0 bytes or more, got {self.bytes}")

    @classmethod
    def parse(cls, state: object) -> Self:
        """Read what `state` has written. Raises NotResumable."""
        match state:
            case {"bytes": int(size), "blake3": str(digest)} if size >= 0:
                return cls(size, digest)
        raise NotResumable(f"no mark of a file: {state!r}")

    def state(self) -> State:
        return {"bytes": self.bytes, "blake3": self.blake3}


class GrowingFile(DurableFile):
    """A DurableFile that can be taken up again where a mark says; what came after the mark is cut off.

    Raises NotResumable where the bytes up to the mark are others.
    """

    def __init__(self, path: Path, mode: int = 0o666, *, at: FileMark | None = None) -> None:
        if at is None:
            super().__init__(path, mode)
            return
        self.path = path
        self.size = at.bytes
        self._hash = blake3()
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotResumable(f"{path}: is gone") from error
        except OSError as error:
            raise NotResumable(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            self._take_up(at)
        except BaseException:
            self.close()
            raise

    def mark(self) -> FileMark:
        """Sync, and say where the file is now."""
        self.sync()
        return FileMark(self.size, self.blake3)

    def _take_up(self, at: FileMark) -> None:
        with writing(self.path):
            left = at.bytes
            while left and (piece := os.read(self._fd, min(left, _PIECE_BYTES))):
                self._hash.update(piece)
                left -= len(piece)
            if left or self.blake3 != at.blake3:
                raise NotResumable(
                    f"{self.path}: its first {at.bytes} bytes are not those that were recorded"
                )
            os.ftruncate(self._fd, at.bytes)
            os.lseek(self._fd, at.bytes, os.SEEK_SET)
