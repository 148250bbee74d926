"""A folder on disk."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stages.errors import (
    OutputError,
    OutputFull,
    StorageError,
    StorageMissing,
    StorageTaken,
    StorageUnavailable,
)
from stages.storage.durable import DurableFile, sync_folder, writing
from stages.storage.protocol import Entry, Span, parts_of

_DRAFT = ".draft-"
_TRANSIENT = (ConnectionError, InterruptedError, TimeoutError)


class LocalStorage:
    """Storage below `root`. Reads and writes run in threads."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def name(self) -> str:
        return str(self._root)

    async def size(self, path: str) -> int:
        def size() -> int:
            file = self._path(path)
            with self._naming(path):
                if not file.is_file():
                    raise FileNotFoundError(path)
                return file.stat().st_size

        return await asyncio.to_thread(size)

    async def read(self, path: str, spans: Sequence[Span]) -> list[bytes]:
        def read() -> list[bytes]:
            file = self._path(path)
            with self._naming(path):
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    return [self._span(fd, path, span) for span in spans]
                finally:
                    os.close(fd)

        return await asyncio.to_thread(read)

    async def list(self, prefix: str) -> list[Entry]:
        def found() -> list[Entry]:
            folder = self._path(prefix)
            with self._naming(prefix):
                return sorted(self._walk(folder), key=lambda entry: parts_of(entry.path))

        return await asyncio.to_thread(found)

    async def write(self, path: str, data: bytes, *, replace: bool = True) -> None:
        def write() -> None:
            file = self._path(path)
            draft = file.with_name(f"{_DRAFT}{secrets.token_hex(8)}")
            try:
                with writing(file.parent):
                    file.parent.mkdir(parents=True, exist_ok=True)
                self._publish(draft, file, data, replace)
            except FileExistsError as error:
                raise StorageTaken(f"{self.name}/{path}: is there already") from error
            except OutputFull:
                raise
            except OutputError as error:
                raise StorageError(f"{self.name}/{path}: cannot be written: {error}") from error

        await asyncio.to_thread(write)

    def _publish(self, draft: Path, file: Path, data: bytes, replace: bool) -> None:
        try:
            with DurableFile(draft) as new:
                new.write(data)
            if replace:
                with writing(file):
                    draft.replace(file)
            else:
                try:
                    os.link(draft, file)
                except FileExistsError:
                    raise
                except OSError as error:
                    raise OutputError(f"{file}: {error.strerror}") from error
            sync_folder(file.parent)
        finally:
            draft.unlink(missing_ok=True)

    def _span(self, fd: int, path: str, span: Span) -> bytes:
        start, stop = span
        parts: list[bytes] = []
        while start < stop:
            part = os.pread(fd, stop - start, start)
            if not part:
                raise StorageError(f"{self.name}/{path}: ends at byte {start}, was to be read up to {stop}")
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _walk(self, folder: Path) -> Iterator[Entry]:
        for parent, _, names in os.walk(folder):
            for name in names:
                file = Path(parent, name)
                if name.startswith(_DRAFT) or file.is_symlink() or not file.is_file():
                    continue
                yield Entry(file.relative_to(self._root).as_posix(), file.stat().st_size)

    def _path(self, path: str) -> Path:
        if ".." in path.split("/") or path.startswith("/"):
            raise StorageError(f"{self.name}: {path!r} does not lie below it")
        return self._root / path

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StorageMissing(f"{self.name}/{path}: no such file") from error
        except _TRANSIENT as error:
            raise StorageUnavailable(f"{self.name}/{path}: cannot be read now: {error.strerror}") from error
        except OSError as error:
            raise StorageError(f"{self.name}/{path}: cannot be read: {error.strerror}") from error
