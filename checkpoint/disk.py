"""Every operation on files that this package makes, in one class.

A test that wants a full disk, a power cut or an exit after each operation overrides these methods; nothing
else in the package touches a file. Methods raise OSError as the system gives it: naming it is the caller's
part.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path

# Linux refuses more buffers than IOV_MAX (1024) in one writev.
_BUFFERS_PER_WRITE = 1024


class Disk:
    """The local file system."""

    def make_dir(self, path: Path) -> bool:
        """Make a folder; False if it is there already. Raises NotADirectoryError if a file is."""
        try:
            path.mkdir(mode=0o777)
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(20, "Not a directory", str(path)) from None
            return False
        return True

    def names(self, path: Path) -> list[str]:
        """The names in a folder, sorted."""
        return sorted(os.listdir(path))  # noqa: PTH208 - names are wanted, not a Path for each

    def is_real_dir(self, path: Path) -> bool:
        """Whether the path itself, no link followed, is a folder."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            return False

    def open(self, path: Path) -> int:
        """Open a regular file for reading. A symbolic link raises ELOOP; a pipe or device, EISDIR."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise IsADirectoryError(21, "Not a regular file", str(path))
        return fd

    def create(self, path: Path) -> int:
        """Create a file that must not exist, for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read_into(self, fd: int, view: memoryview, offset: int) -> int:
        """Fill `view` from `offset`; returns the bytes read, fewer only at the file's end."""
        done = 0
        while done < len(view):
            count = os.preadv(fd, [view[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done

    def write(self, fd: int, views: Sequence[memoryview]) -> None:
        """Append all bytes of all views."""
        for first in range(0, len(views), _BUFFERS_PER_WRITE):
            rest = [view for view in views[first : first + _BUFFERS_PER_WRITE] if len(view)]
            while rest:
                written = os.writev(fd, rest)
                while rest and written >= len(rest[0]):
                    written -= len(rest[0])
                    rest.pop(0)
                if written:
                    rest[0] = rest[0][written:]

    def overwrite(self, fd: int, data: bytes) -> None:
        """Make `data` all that an open file holds."""
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)  # noqa: PTH104 - the plain system calls are what fault tests stand on

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name. Raises FileExistsError if the name is taken."""
        os.link(old, new)

    def same_file(self, one: Path, other: Path) -> bool:
        """Whether both names are there and are one file."""
        try:
            return os.path.samestat(os.lstat(one), os.lstat(other))
        except FileNotFoundError:
            return False

    def unlink(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        path.unlink(missing_ok=True)

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a folder durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def open_lock(self, path: Path) -> int:
        """Open the lock file, made if absent, without taking the lock."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)

    def try_lock(self, fd: int) -> bool:
        """Take the exclusive lock on an open file; False if another holds it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)
