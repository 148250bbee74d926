"""A store of versions on disk: what it lists, reads, verifies and rolls back to. Nothing here needs torch."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blake3 import blake3

from checkpoint.chunks import Chunks, Span
from checkpoint.disk import Disk
from checkpoint.errors import NoStore, NoVersion, StoreDamaged, WrongState, naming
from checkpoint.layout import FOLDERS, MAY_LACK, Format, Layout, version_number
from checkpoint.strict import Malformed, encode
from checkpoint.tensors import ITEM_BYTES, chunk_count, chunk_length
from checkpoint.version import (
    DIGEST_BYTES,
    EMPTY_ROOT,
    PREFIX,
    Manifest,
    StoredTensor,
    VersionInfo,
    decode_header,
    decode_version,
    header_bytes,
)

_FORMAT_MAX_BYTES = 4096
_HEADER_GUESS = 4096
# How the system refuses a link, a folder or pipe (see Disk.open), and a socket.
_NO_FILE = {errno.ELOOP, errno.EISDIR, errno.ENXIO}


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A piece of a version's tensor with what names its bytes.

    Attributes:
        tensor: the tensor's index in the manifest.
        piece: the piece's index in the tensor.
        name: the tensor's name.
        nbytes: the length of the piece.
        root: as in the manifest.
        digests: of its chunks, in order.
    """

    tensor: int
    piece: int
    name: str
    nbytes: int
    root: bytes
    digests: tuple[bytes, ...]


class Store:
    """A store opened for reading; any number of readers may be open beside the one writer.

    Raises:
        NoStore: the folder is missing or is no store.
        UnknownFormat: another release wrote it.
        StoreDamaged: its FORMAT file is not what was written.
    """

    def __init__(self, path: Path | str, disk: Disk | None = None) -> None:
        self.disk = Disk() if disk is None else disk
        self.layout = Layout(Path(path))
        self.format = read_format(self.layout, self.disk)
        self._chunks = Chunks(self.disk, self.layout)

    @property
    def path(self) -> Path:
        return self.layout.root

    def versions(self) -> Sequence[int]:
        """All version numbers, ascending, by file name alone."""
        with naming("listing", self.layout.versions):
            names = self.disk.names(self.layout.versions)
        return [number for name in names if (number := version_number(name)) is not None]

    def latest(self) -> int | None:
        """The head: the highest version number."""
        return max(self.versions(), default=None)

    def info(self, version: int) -> VersionInfo:
        """What a version's header says; only the header is read and checked. Raises NoVersion, StoreDamaged."""
        path = self.layout.version(version)
        fd = self._open_version(version)
        try:
            with naming("reading", path):
                size = self.disk.size(fd)
                data = self._read(fd, 0, min(_HEADER_GUESS, size))
                need = header_bytes(data[: PREFIX.size], size)
                if need > len(data):
                    data += self._read(fd, len(data), need - len(data))
            return decode_header(data[:need], version)
        except Malformed as error:
            raise self._damaged(version, error) from error
        finally:
            self.disk.close(fd)

    def list(self) -> Sequence[VersionInfo]:
        """Every version's header, ascending. Raises StoreDamaged if one cannot be read."""
        return [self.info(version) for version in self.versions()]

    def read(self, version: int) -> tuple[VersionInfo, Manifest]:
        """A whole version file, checked. Raises NoVersion, StoreDamaged."""
        path = self.layout.version(version)
        fd = self._open_version(version)
        try:
            with naming("reading", path):
                size = self.disk.size(fd)
                header_bytes(self._read(fd, 0, min(PREFIX.size, size)), size)
                data = self._read(fd, 0, size)
            return decode_version(data, version)
        except Malformed as error:
            raise self._damaged(version, error) from error
        finally:
            self.disk.close(fd)

    def pieces(self, version: int, manifest: Manifest, tensors: Sequence[int]) -> Sequence[StoredPiece]:
        """The pieces of some tensors of a version with their chunks' digests. Raises StoreDamaged."""
        self._chunks.look_in(manifest.packs)
        names = manifest.names()
        chunk_bytes = self.format.chunk_bytes
        found: list[StoredPiece] = []
        lists: list[Span] = []
        for index in tensors:
            tensor = manifest.tensors[index]
            for at, (piece, root) in enumerate(zip(tensor.pieces, tensor.roots, strict=True)):
                size = piece.elements * ITEM_BYTES[tensor.spec.dtype]
                count = chunk_count(size, chunk_bytes)
                if count == 0 and root != EMPTY_ROOT:
                    raise StoreDamaged(
                        "a tensor without bytes has a digest of some", version=version, tensor=names[index]
                    )
                if count > 1:
                    wanted = Span(root, count * DIGEST_BYTES, names[index])
                    # Found before it is allocated: a length out of nowhere is refused here.
                    self._chunks.pack_of(wanted, version)
                    lists.append(replace(wanted, into=memoryview(bytearray(wanted.nbytes))))
                found.append(StoredPiece(index, at, names[index], size, root, (root,) if count == 1 else ()))
        self._chunks.read(lists, version)
        contents = iter(lists)
        return [
            replace(piece, digests=_split(next(contents).into))
            if chunk_count(piece.nbytes, chunk_bytes) > 1
            else piece
            for piece in found
        ]

    def read_chunks(
        self, spans: Sequence[Span], version: int, *, fingerprints: bool = False
    ) -> Sequence[bytes]:
        """Read and verify chunks of a version whose `pieces` were taken; see `Chunks.read`."""
        return self._chunks.read(spans, version, fingerprints=fingerprints)

    def pack_of(self, digest: bytes, size: int, name: str, version: int) -> str:
        """The pack of a chunk of a version whose `pieces` were taken. Raises StoreDamaged."""
        return self._chunks.pack_of(Span(digest, size, name), version)

    def spans(self, piece: StoredPiece) -> Sequence[Span]:
        """What to read for a piece, in order."""
        return [
            Span(digest, chunk_length(piece.nbytes, self.format.chunk_bytes, index), piece.name)
            for index, digest in enumerate(piece.digests)
        ]

    def chunks_of(self, tensor: StoredTensor) -> int:
        """How many chunks a tensor is cut into."""
        item = ITEM_BYTES[tensor.spec.dtype]
        return sum(chunk_count(piece.elements * item, self.format.chunk_bytes) for piece in tensor.pieces)

    def verify(self, version: int, checked: set[bytes] | None = None) -> VersionInfo:
        """Read every byte of a version and compare it with its digest.

        `checked` holds digests that need no second look, and takes those that were found good: give one set
        to several calls to read what versions share only once.

        Raises:
            StoreDamaged: names the version, the tensor and the pack.
        """
        checked = set() if checked is None else checked
        info, manifest = self.read(version)
        spans: dict[bytes, Span] = {}
        for piece in self.pieces(version, manifest, range(len(manifest.tensors))):
            for span in self.spans(piece):
                known = spans.setdefault(span.digest, span)
                if known.nbytes != span.nbytes:
                    raise StoreDamaged("a chunk has two lengths", version=version, tensor=span.tensor)
        wanted = [span for digest, span in spans.items() if digest not in checked]
        self._chunks.read(wanted, version)
        checked.update(spans)
        return info

    def last_good(self, before: int) -> int | None:
        """The newest version below `before` that verifies whole; None if there is none."""
        checked: set[bytes] = set()
        for version in reversed([number for number in self.versions() if number < before]):
            try:
                self.verify(version, checked)
            except StoreDamaged:
                continue
            return version
        return None

    def digest(self, version: int, parts: Sequence[str]) -> str:
        """A digest of the tensors of some parts, from the version file alone.

        Equal for versions of stores with one chunk size exactly where names, types, shapes, pieces and every
        bit are.

        Raises:
            NoVersion, StoreDamaged: there is no such version, or its file is damaged.
            WrongState: it lacks one of the parts.
        """
        _, manifest = self.read(version)
        hasher = blake3()
        for part in sorted(parts):
            self.expect_part(version, manifest, part)
            for name, index in sorted(manifest.leaves(part).items()):
                tensor = manifest.tensors[index]
                boxes = [[list(piece.offset), list(piece.shape)] for piece in tensor.pieces]
                hasher.update(encode([name, tensor.spec.dtype, list(tensor.spec.shape), boxes]))
                hasher.update(b"".join(tensor.roots))
        return hasher.hexdigest()

    def expect_part(self, version: int, manifest: Manifest, part: str) -> None:
        """Raises WrongState unless the version has the part."""
        if part not in manifest.tree:
            raise WrongState(version, [no_part(version, manifest, part)])

    def restore_as_head(self, version: int) -> VersionInfo:
        """Verify a version whole, then commit a new one with its content. No pack is written.

        Raises:
            NoVersion, StoreDamaged: there is nothing whole to restore; nothing was changed.
            StoreLocked: a writer lives.
        """
        from checkpoint.writer import Writer  # the writer stands on the store

        with Writer(self.path, disk=self.disk) as writer:
            info = self.verify(version)
            _, manifest = self.read(version)
            with writer.begin(version) as save:
                return save.commit(
                    replace(info, parent=version, new_bytes=0, restored_from=version), manifest
                )

    def _open_version(self, version: int) -> int:
        path = self.layout.version(version)
        with naming("opening", path):
            try:
                return self.disk.open(path)
            except FileNotFoundError as error:
                raise NoVersion(self._no_version(version)) from error
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
                raise StoreDamaged(
                    f"{path}: it cannot be opened as a file ({error.strerror})", version=version
                ) from error

    def _no_version(self, version: int) -> str:
        versions = self.versions()
        if not versions:
            return f"{self.path} has no version {version}: it has no versions yet"
        return f"{self.path} has no version {version}: it has {in_words(versions)}"

    def _read(self, fd: int, offset: int, count: int) -> bytes:
        data = bytearray(count)
        if self.disk.read_into(fd, memoryview(data), offset) != count:
            raise Malformed("it is cut short")
        return bytes(data)

    def _damaged(self, version: int, error: Malformed) -> StoreDamaged:
        return StoreDamaged(f"{self.layout.version(version)}: {error}", version=version)


def no_part(version: int, manifest: Manifest, part: str) -> str:
    """Says that a version lacks a part, and which parts it has."""
    return f"part {part}: not in version {version}, which has {', '.join(manifest.tree) or 'none'}"


def in_words(versions: Sequence[int]) -> str:
    """Ascending numbers as ranges: `1 to 4, 7`."""
    runs: list[tuple[int, int]] = []
    for version in versions:
        if runs and runs[-1][1] == version - 1:
            runs[-1] = (runs[-1][0], version)
        else:
            runs.append((version, version))
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


def _split(digests: memoryview | None) -> tuple[bytes, ...]:
    assert digests is not None
    data = bytes(digests)
    return tuple(data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES))


def read_format(layout: Layout, disk: Disk) -> Format:
    """What the FORMAT file says, once the folders are found to be folders and no links."""
    with naming("opening the store", layout.root):
        try:
            fd = disk.open(layout.format)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoStore(f"{layout.root} is no version store: it has no FORMAT file") from error
    try:
        with naming("reading", layout.format):
            size = disk.size(fd)
            data = bytearray(min(size, _FORMAT_MAX_BYTES))
            count = disk.read_into(fd, memoryview(data), 0)
        if count != size:
            raise Malformed(f"it has {size} bytes, at most {_FORMAT_MAX_BYTES} make sense")
        found = Format.decode(bytes(data))
    except Malformed as error:
        raise StoreDamaged(f"{layout.format}: {error}") from error
    finally:
        disk.close(fd)
    with naming("listing", layout.root):
        lacking = set(MAY_LACK) - set(disk.names(layout.root))
    for name in FOLDERS:
        if name not in lacking and not disk.is_real_dir(layout.root / name):
            raise StoreDamaged(f"{layout.root / name} is missing, or is a link and no folder")
    return found
