"""The lock of the one writer: a flock, which the system takes back when the process ends, however it ends."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from checkpoint.disk import Disk
from checkpoint.errors import StoreLocked, naming


class WriterLock:
    """Held from construction to `close`. Raises StoreLocked if another writer lives."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._disk = disk
        with naming("taking the writer's lock", path):
            fd = disk.open_lock(path)
            try:
                if not disk.try_lock(fd):
                    pid = _holder(disk, path)
                    who = "another process" if pid is None else f"process {pid}"
                    raise StoreLocked(
                        f"{path.parent} is being written by {who}: wait for it to end, or stop it, then try again",
                        pid,
                    )
                disk.overwrite(fd, b"%d\n" % os.getpid())
            except BaseException:
                disk.close(fd)
                raise
        self._fd: int | None = fd
        _held.add(self)

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.unlock(fd)
            self._disk.close(fd)

    def forget(self) -> None:
        """Close this process's copy without releasing the lock."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)


def _holder(disk: Disk, path: Path) -> int | None:
    fd = disk.open(path)
    try:
        data = bytearray(32)
        text = bytes(data[: disk.read_into(fd, memoryview(data), 0)]).strip()
    finally:
        disk.close(fd)
    return int(text) if text.isdigit() else None


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _after_fork() -> None:
    # A child that kept the file open would hold the lock after its parent was killed, and block the next run.
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_after_fork)
