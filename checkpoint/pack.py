"""Pack files: chunks end to end, and an index at the end.

    "HRPACK1\\n"                8
    chunks                     end to end, in the index's order
    entries, 56 bytes each     digest 32 | offset u64 | stored u32 | raw u32 | codec u16 | depth u16 | base u32
    bases, 32 bytes each       digests of chunks that coded ones are relative to
    trailer, 64 bytes          index offset u64 | entries u64 | bases u64 | blake3 32 | "HRPEND1\\n"

All integers are little endian. The trailer's blake3 covers entries, bases and its own three integers; a chunk
is covered by its digest, which is of the raw bytes. Codec 0 is raw: stored = raw, depth and base 0. With
other codecs `base` counts from 1 into the bases, and `depth` is the length of the chain that decoding walks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from checkpoint.disk import Disk
from checkpoint.layout import temporary
from checkpoint.strict import Malformed

MAGIC = b"HRPACK1\n"
END = b"HRPEND1\n"
ENTRY = struct.Struct("<32sQIIHHI")
_COUNTS = struct.Struct("<QQQ")
TRAILER_BYTES = _COUNTS.size + 32 + len(END)
DIGEST_BYTES = 32
RAW = 0

# A write waits for this much or this many, so that small chunks share one.
_FLUSH_BYTES = 8 << 20
_FLUSH_VIEWS = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk is inside its pack."""

    digest: bytes
    offset: int
    nbytes: int


class PackWriter:
    """Writes one pack under a temporary name; `finish` makes it durable and gives it its name.

    A view that was added must stay unchanged until `finish` or `abandon`. Errors are the disk's own OSErrors;
    after one the pack is to be abandoned.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._fd: int | None = disk.create(temporary(path))
        self._entries: list[bytes] = []
        self._waiting: list[memoryview] = [memoryview(MAGIC)]
        self._waiting_bytes = len(MAGIC)
        self.nbytes = len(MAGIC)
        """Written so far, in bytes; after `finish`, the size of the file."""

    def add(self, digest: bytes, chunk: memoryview) -> None:
        self._entries.append(ENTRY.pack(digest, self.nbytes, len(chunk), len(chunk), RAW, 0, 0))
        self._write(chunk)

    def finish(self) -> None:
        index_offset = self.nbytes
        index = b"".join(self._entries)
        counts = _COUNTS.pack(index_offset, len(self._entries), 0)
        self._write(memoryview(index + counts + blake3(index + counts).digest() + END))
        self._flush()
        fd = self._open_fd()
        self._disk.fsync(fd)
        self._fd = None
        self._disk.close(fd)
        self._disk.rename(temporary(self._path), self._path)

    def abandon(self) -> None:
        """Close what is open. Removing the file is the owner's part."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            self._disk.close(fd)

    def _write(self, view: memoryview) -> None:
        self._waiting.append(view)
        self._waiting_bytes += len(view)
        self.nbytes += len(view)
        if self._waiting_bytes >= _FLUSH_BYTES or len(self._waiting) >= _FLUSH_VIEWS:
            self._flush()

    def _flush(self) -> None:
        views, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._disk.write(self._open_fd(), views)

    def _open_fd(self) -> int:
        assert self._fd is not None, "the pack is closed"
        return self._fd


def read_index(disk: Disk, fd: int) -> list[Place]:
    """The places of a pack's chunks, from its index.

    Raises:
        Malformed: the file is cut, or its index is not what was written.
    """
    size = disk.size(fd)
    if size < len(MAGIC) + TRAILER_BYTES:
        raise Malformed(f"a pack of {size} bytes is cut short")
    magic, trailer = _read(disk, fd, 0, len(MAGIC)), _read(disk, fd, size - TRAILER_BYTES, TRAILER_BYTES)
    if magic != MAGIC or trailer[-len(END) :] != END:
        raise Malformed("it does not begin and end as a pack does")
    index_offset, entries, bases = _COUNTS.unpack_from(trailer)
    index_bytes = entries * ENTRY.size + bases * DIGEST_BYTES
    if index_offset + index_bytes + TRAILER_BYTES != size:
        raise Malformed("its index does not lie where its trailer says")
    index = _read(disk, fd, index_offset, index_bytes)
    digest = trailer[_COUNTS.size : _COUNTS.size + DIGEST_BYTES]
    if blake3(index + trailer[: _COUNTS.size]).digest() != digest:
        raise Malformed("its index does not match its checksum")
    return list(_places(index[: entries * ENTRY.size], index_offset))


def _places(entries: bytes, index_offset: int) -> Iterator[Place]:
    expected = len(MAGIC)
    for digest, offset, stored, raw, codec, depth, base in ENTRY.iter_unpack(entries):
        if codec != RAW:
            raise Malformed(f"a chunk has codec {codec}, which this release does not know")
        if offset != expected or stored != raw or depth or base:
            raise Malformed(
                f"its index puts a chunk of {stored} bytes at {offset}, expected one at {expected}"
            )
        expected += stored
        yield Place(digest, offset, raw)
    if expected != index_offset:
        raise Malformed(f"its chunks end at {expected}, its index begins at {index_offset}")


def _read(disk: Disk, fd: int, offset: int, count: int) -> bytes:
    data = bytearray(count)
    if disk.read_into(fd, memoryview(data), offset) != count:
        raise Malformed("it is cut short")
    return bytes(data)
