"""An object store, by obstore."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pipeline import Retry
from stages.errors import StorageError, StorageMissing, StorageTaken, StorageUnavailable
from stages.storage.protocol import Entry, Span, parts_of

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

T = TypeVar("T")

RETRY = Retry(on=(StorageUnavailable,), attempts=5, first_s=0.2)
"""A busy store says so for seconds; one that is down for longer is an error."""
_STATUS = re.compile(r"status code: (\d{3})")
_PASSING = {408, 429, 500, 502, 503, 504}
"""Answers that say nothing about the request itself."""


class RemoteStorage:
    """Storage in a bucket. Requests that fail in passing are made again, as `retry` says."""

    def __init__(self, store: ObjectStore, name: str, retry: Retry = RETRY) -> None:
        """`store` should not try again by itself. `name` must hold no credentials."""
        self._store = store
        self._name = name
        self._retry = retry

    @classmethod
    def open(cls, root: str, retry: Retry = RETRY) -> RemoteStorage:
        """`root` is `s3://bucket`, `gs://bucket`, `az://container` or `https://host`.

        Credentials and endpoints come from the environment, as each vendor's own tools read them. Raises StorageError.
        """
        try:
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as error:
            raise StorageError(f"{root}: needs the extra s3: pip install 'headrace[s3]'") from error
        once: RetryConfig = {"max_retries": 0}
        plain: ClientConfig = {"allow_http": True}
        try:
            if root.startswith("http://"):
                return cls(from_url(root, retry_config=once, client_options=plain), root, retry)
            return cls(from_url(root, retry_config=once), root, retry)
        except (BaseError, ValueError) as error:
            raise StorageError(f"{root}: {_said(error)}") from error

    @property
    def name(self) -> str:
        return self._name

    async def size(self, path: str) -> int:
        from obstore import head_async

        return (await self._asked(path, lambda: head_async(self._store, path)))["size"]

    async def read(self, path: str, spans: Sequence[Span]) -> list[bytes]:
        from obstore import get_ranges_async

        wanted = [(start, stop) for start, stop in spans if start < stop]
        if not wanted:
            return [b"" for _ in spans]
        starts, stops = [start for start, _ in wanted], [stop for _, stop in wanted]
        got = iter(
            await self._asked(path, lambda: get_ranges_async(self._store, path, starts=starts, ends=stops))
        )
        found: list[bytes] = []
        for start, stop in spans:
            data = next(got).to_bytes() if start < stop else b""
            if len(data) != max(0, stop - start):
                raise StorageError(
                    f"{self._name}/{path}: ends at byte {start + len(data)}, was to be read up to {stop}"
                )
            found.append(data)
        return found

    async def list(self, prefix: str) -> list[Entry]:
        from obstore import list as list_objects

        async def collect() -> list[Entry]:
            return [
                Entry(found["path"], found["size"])
                async for some in list_objects(self._store, prefix or None)
                for found in some
            ]

        return sorted(await self._asked(prefix, collect), key=lambda entry: parts_of(entry.path))

    async def write(self, path: str, data: bytes, *, replace: bool = True) -> None:
        from obstore import put_async

        mode: PutMode = "overwrite" if replace else "create"
        await self._asked(path, lambda: put_async(self._store, path, data, mode=mode))

    async def _asked(self, path: str, ask: Callable[[], Awaitable[T]]) -> T:
        attempts = 0
        while True:
            try:
                return await self._once(path, ask)
            except StorageUnavailable as error:
                attempts += 1
                if not self._retry.again(error, attempts):
                    raise
                await asyncio.sleep(self._retry.delay_s(attempts))

    async def _once(self, path: str, ask: Callable[[], Awaitable[T]]) -> T:
        from obstore import exceptions

        where = f"{self._name}/{path}"
        try:
            return await ask()
        except (FileNotFoundError, exceptions.NotFoundError) as error:
            raise StorageMissing(f"{where}: no such object") from error
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise StorageTaken(f"{where}: is there already") from error
        except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise StorageError(
                f"{where}: not allowed: {_said(error)}; check the credentials in the environment"
            ) from error
        except exceptions.BaseError as error:
            kind = StorageUnavailable if _passes(error) else StorageError
            raise kind(f"{where}: {_said(error)}") from error
        except (ConnectionError, TimeoutError) as error:
            raise StorageUnavailable(f"{where}: {_said(error)}") from error


def _passes(error: Exception) -> bool:
    """Whether a failure may pass: what says nothing about the request itself."""
    said = str(error)
    status = _STATUS.search(said)
    if status is not None:
        return int(status[1]) in _PASSING
    return not any(
        mark in said for mark in ("builder error", "Unable to", "not supported", "not implemented")
    )


def _said(error: Exception) -> str:
    """The library's message without what it adds for those who debug it."""
    first, _, _ = str(error).partition("\n")
    return first
