"""From what a user writes to the storage that it is in."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stages.errors import StorageError
from stages.storage.protocol import Storage
from stages.storage.remote import RemoteStorage

# One slash where there should be two is what pathlib makes of a URI.
_URI = re.compile(r"(?P<scheme>s3|gs|az|https?):/{1,2}(?P<authority>[^/]+)(?:/(?P<path>.*))?", re.DOTALL)
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


@dataclass(frozen=True, slots=True)
class Location:
    """A path in an object store."""

    root: str
    """`s3://bucket`, without credentials."""
    path: str
    """Below it, without slashes at its ends; empty for all of it."""

    @property
    def uri(self) -> str:
        return f"{self.root}/{self.path}"


def locate(argument: str) -> Location | None:
    """The location that a URI says; None where `argument` is a path on disk.

    Raises StorageError where it holds credentials: what is written on a command line is seen by others and recorded.
    The message does not repeat them.
    """
    found = _URI.fullmatch(argument)
    if found is None:
        return None
    scheme, authority, path = found["scheme"], found["authority"], found["path"] or ""
    if "@" in authority:
        keys = _KEYS.get(scheme, "a public address")
        host = authority.rpartition("@")[2]
        raise StorageError(f"{scheme}://…@{host}: holds credentials; give them as {keys} in the environment")
    if scheme.startswith("http") and "?" in path:
        raise StorageError(
            f"{scheme}://{authority}/{path.partition('?')[0]}?…: a query may hold credentials; leave it out"
        )
    return Location(f"{scheme}://{authority}", path.strip("/"))


class Storages:
    """Opens each storage once, so that its connections are used again."""

    def __init__(self) -> None:
        self._open: dict[str, Storage] = {}

    def at(self, root: str) -> Storage:
        """Raises StorageError."""
        if root not in self._open:
            self._open[root] = RemoteStorage.open(root)
        return self._open[root]
