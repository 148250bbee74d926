"""Writing files so that they last, and saying what is wrong where they cannot be written.

Data first, its naming last: a file counts once it and its folder have been synced.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from blake3 import blake3

from stages.errors import OutputBusy, OutputError, OutputFull

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into OutputFull or OutputError, naming the file at hand."""
    try:
        yield
    except OSError as error:
        name = error.filename or path
        if error.errno in _FULL:
            raise OutputFull(
                f"{name}: {error.strerror}: free some space and run the same command again, or choose another --out"
            ) from error
        raise OutputError(f"{name}: cannot be written: {error.strerror}; choose another --out") from error


class DurableFile:
    """A new file, written once from front to back, hashed on the way and synced at the end.

    Unbuffered: callers write large pieces. `size` and `blake3` are those of what has been written so far.
    Raises OutputError, OutputFull.
    """

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        self.path = path
        self.size = 0
        self._hash = blake3()
        with writing(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self.size += len(view)
        rest = view
        with writing(self.path):
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        return len(view)

    @property
    def blake3(self) -> str:
        return self._hash.hexdigest()

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def sync(self) -> None:
        with writing(self.path):
            os.fsync(self._fd)

    def close(self) -> None:
        """Close without syncing. May be called twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with writing(self.path):
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Sync where the block has gone well, and close."""
        try:
            if error is None:
                self.sync()
        finally:
            self.close()


def sync_folder(folder: Path) -> None:
    """Make the folder's names durable. Raises OutputError."""
    with writing(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def publish(path: Path, data: bytes) -> None:
    """Let `path` appear with `data`, whole and durable, or not at all. Raises OutputError, OutputFull."""
    draft = path.with_name(path.name + ".draft")
    with writing(draft):
        draft.unlink(missing_ok=True)
    with DurableFile(draft) as file:
        file.write(data)
    with writing(path):
        draft.replace(path)
    sync_folder(path.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against every other writer, also on other machines where the file system locks for
    them.

    The lock is of the folder itself: it leaves no file, and a killed holder leaves no lock. Raises
    OutputBusy.
    """
    with writing(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputBusy(
                f"{folder}: in use: another process is writing there; wait for it, or choose another --out"
            ) from error
        except OSError as error:
            raise OutputError(f"{folder}: cannot be locked: {error.strerror}") from error
        if not _is_still(fd, folder):
            raise OutputBusy(f"{folder}: was in use until now, and its holder has removed it; try again")
        yield
    finally:
        os.close(fd)


def _is_still(fd: int, folder: Path) -> bool:
    """Whether the folder that was opened is the one of that name: else its lock guards nothing."""
    try:
        return os.path.samestat(os.fstat(fd), folder.stat())
    except FileNotFoundError:
        return False


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
