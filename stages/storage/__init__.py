"""Where bytes lie: on disk or in an object store.

s3://bucket/a/b ─► locate ─► Storages ─► Storage ─┬─ size, list, write (whole or not at all)
gs, az, http(s)                                   └─ read (spans) ◄── stream (ahead, within a window of bytes)

DurableFile, publish, locked, sync_folder: files on disk that last
"""

from stages.storage.durable import DurableFile, file_sha256, locked, publish, sync_folder, writing
from stages.storage.local import LocalStorage
from stages.storage.opening import Location, Storages, locate
from stages.storage.protocol import Entry, Span, Storage
from stages.storage.remote import RemoteStorage
from stages.storage.stream import stream

__all__ = [
    "DurableFile",
    "Entry",
    "LocalStorage",
    "Location",
    "RemoteStorage",
    "Span",
    "Storage",
    "Storages",
    "file_sha256",
    "locate",
    "locked",
    "publish",
    "stream",
    "sync_folder",
    "writing",
]
