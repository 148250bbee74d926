"""What a place for bytes does, wherever it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Span: TypeAlias = tuple[int, int]
"""Bytes [start, stop)."""


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    """Below the storage's root, parts joined by slashes."""
    bytes: int


class Storage(Protocol):
    """A tree of files or objects; paths are below its root.

    Every method raises StorageMissing where there is nothing of that path, StorageUnavailable for what may pass, and
    StorageError for what will not.
    """

    @property
    def name(self) -> str:
        """For messages, without credentials: `s3://bucket`, a folder's path."""
        ...

    async def size(self, path: str) -> int: ...

    async def read(self, path: str, spans: Sequence[Span]) -> list[bytes]:
        """The bytes of each span. StorageError where one reaches over the end."""
        ...

    async def list(self, prefix: str) -> list[Entry]:
        """All files below a folder, however deep, in the order of their parts; none where there is no such folder.

        What a killed `write` left is not among them.
        """
        ...

    async def write(self, path: str, data: bytes, *, replace: bool = True) -> None:
        """Let `path` appear with `data`, whole and durable, or not at all.

        Without `replace`, raises StorageTaken where it is there already: of several writers one wins. Raises
        OutputFull where no space is left.
        """
        ...


def parts_of(path: str) -> list[bytes]:
    """What paths are ordered by: a folder's files stand together."""
    return path.encode("utf-8", "surrogateescape").split(b"/")
