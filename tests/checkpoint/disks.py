"""Disks that fail, and disks that stop the process: one operation at a time. None of them waits for the disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from checkpoint.disk import Disk


class Watched(Disk):
    """Calls `before` and `after` around every operation that changes files, with its name and its path's name."""

    def __init__(
        self,
        before: Callable[[str, str], None] = lambda operation, name: None,
        after: Callable[[str, str], None] = lambda operation, name: None,
    ) -> None:
        self._before = before
        self._after = after
        self._open_names: dict[int, str] = {}

    def make_dir(self, path: Path) -> bool:
        self._before("make_dir", path.name)
        made = super().make_dir(path)
        self._after("make_dir", path.name)
        return made

    def create(self, path: Path) -> int:
        self._before("create", path.name)
        fd = super().create(path)
        self._open_names[fd] = path.name
        self._after("create", path.name)
        return fd

    def write(self, fd: int, views: Sequence[memoryview]) -> None:
        name = self._open_names[fd]
        self._before("write", name)
        super().write(fd, views)
        self._after("write", name)

    def fsync(self, fd: int) -> None:
        name = self._open_names[fd]
        self._before("fsync", name)
        self._after("fsync", name)

    def close(self, fd: int) -> None:
        name = self._open_names.pop(fd, None)
        super().close(fd)
        if name is not None:
            self._after("close", name)

    def rename(self, old: Path, new: Path) -> None:
        self._before("rename", new.name)
        super().rename(old, new)
        self._after("rename", new.name)

    def link(self, old: Path, new: Path) -> None:
        self._before("link", new.name)
        super().link(old, new)
        self._after("link", new.name)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._after("unlink", path.name)

    def fsync_dir(self, path: Path) -> None:
        self._before("fsync_dir", path.name)
        self._after("fsync_dir", path.name)


class Failing(Watched):
    """Fails the operation of a given number with an errno, once; `done` lists the operations before and after."""

    def __init__(self, fail_at: int | None, code: int) -> None:
        super().__init__(before=self._count)
        self.fail_at = fail_at
        self.code = code
        self.armed = False
        self.done: list[str] = []

    def _count(self, operation: str, name: str) -> None:
        if not self.armed:
            return
        self.done.append(operation)
        if len(self.done) - 1 == self.fail_at:
            raise OSError(self.code, os.strerror(self.code))


def dying(after: int) -> Watched:
    """A disk that kills the process with SIGKILL right after so many operations."""
    left = after

    def count(operation: str, name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return Watched(after=count)
