"""The writer of a store: opens it, writes packs, commits versions.

    begin ─► add, add, …, seal ─────────────► commit
    intent   packs: write, fsync, rename,     version: write, fsync, link to its number, fsync the folder
             fsync the folder                 (a number that is taken: fenced)

Whatever stops this before the link leaves no version, only files that nothing refers to; whatever stops it
after leaves a whole one. Where several ranks save together each writes packs, and rank 0 alone opens and commits.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

from checkpoint.disk import Disk
from checkpoint.errors import Fenced, NoStore, RankLost, StoreDamaged, UnknownFormat, naming
from checkpoint.layout import (
    FOLDERS,
    MAX_VERSION,
    MAY_LACK,
    SAVE_NAME,
    TEMPORARY,
    Format,
    Layout,
    temporary,
)
from checkpoint.lock import WriterLock
from checkpoint.pack import PackWriter
from checkpoint.peers import INTEGER, SOLO, Peers
from checkpoint.store import Store
from checkpoint.strict import encode
from checkpoint.version import Manifest, VersionInfo, encode_version

PACK_BYTES = 1 << 30

_saving = partial(naming, full="What this save had written was removed, earlier versions are whole. ")


class Writer:
    """A store opened for writing, made if absent. Held by one process, or one group of them, until `close`.

    Of peers rank 0 takes the lock and cleans up before any other opens the store.

    Args:
        path: the store's folder.
        chunk_bytes: for a new store; an existing one must have it if it is given. None: what the store has,
            or 4 MiB.
        disk: the operations on files.
        pack_bytes: a pack is closed and the next begun when it has this many.
        new_name: draws the 32 hex digits that name a save's packs.
        clock: unix seconds.
        peers: the ranks that save together.

    Raises:
        StoreLocked: a writer lives.
        NoStore: the folder holds other things.
        UnknownFormat: another release's store, or another chunk size.
        StoreDamaged: it lacks what a store has, or its highest number is one that no version can follow.
        StoreUnwritable, StoreFull, StoreFailed: the disk refuses.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        chunk_bytes: int | None = None,
        disk: Disk | None = None,
        pack_bytes: int = PACK_BYTES,
        new_name: Callable[[], str] = lambda: secrets.token_hex(16),
        clock: Callable[[], float] = time.time,
        peers: Peers = SOLO,
    ) -> None:
        self.disk = Disk() if disk is None else disk
        self.layout = Layout(Path(path))
        self.pack_bytes = pack_bytes
        self.new_name = new_name
        self.clock = clock
        self.fenced = False
        with ExitStack() as held:
            self.head = peers.first("opening", lambda: self._take(held, chunk_bytes), INTEGER)
            self.store = peers.together("opening", lambda: Store(path, self.disk))
            self._held = held.pop_all()

    def _take(self, held: ExitStack, chunk_bytes: int | None) -> int:
        """Take the store, make or clean it; the head, 0 for none. What is held is let go with `held`."""
        _make_root(self.layout, self.disk)
        held.callback(WriterLock(self.layout.lock, self.disk).close)
        _make_format(self.layout, self.disk, chunk_bytes)
        store = Store(self.layout.root, self.disk)
        if chunk_bytes not in (None, store.format.chunk_bytes):
            raise UnknownFormat(
                f"{self.layout.root} has chunks of {store.format.chunk_bytes} bytes, asked for were {chunk_bytes}: "
                "leave chunk_bytes out, or begin a new store"
            )
        head = store.latest() or 0
        _expect_followable(self.layout, head)
        _remove_leftovers(self.layout, self.disk)
        return head

    def begin(self, parent: int | None) -> Save:
        """A save that may refer to what `parent` holds."""
        return Save(self, parent)

    def missing_packs(self, packs: Collection[str]) -> set[str]:
        """Those of the packs that are not in the store."""
        if not packs:
            return set()
        with naming("listing", self.layout.packs):
            unlisted = set(packs) - {
                name.removesuffix(".pack") for name in self.disk.names(self.layout.packs)
            }
        # The listing of a network file system may lag behind what another machine has made there.
        return {pack for pack in unlisted if not self._has(pack)}

    def _has(self, pack: str) -> bool:
        path = self.layout.pack(pack)
        with naming("looking for a pack", path):
            try:
                fd = self.disk.open(path)
            except FileNotFoundError:
                return False
            self.disk.close(fd)
        return True

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Save:
    """One version on its way. Left before it is committed, by this rank or another, it takes back all it wrote.

    Views that are added must stay unchanged until `seal`.
    """

    def __init__(self, writer: Writer, parent: int | None) -> None:
        self._writer = writer
        self._disk = writer.disk
        self._layout = writer.layout
        self.name = writer.new_name()
        if not SAVE_NAME.fullmatch(self.name):
            raise ValueError(f"a save's name must be 32 hex digits, got {self.name!r}")
        self._pack: PackWriter | None = None
        self._packs: list[str] = []
        self._parent = parent
        self._announced = False
        self._linked = False
        self.new_bytes = 0
        """Bytes of finished packs."""

    def announce(self) -> None:
        """Say that a save is under way; `add` and `commit` do it first.

        Raises:
            Fenced: the writer was.
            StoreDamaged: no version can follow the head.
        """
        if self._writer.fenced:
            raise Fenced(_fenced(self._layout.version(self._writer.head + 1)))
        if self._announced:
            return
        _expect_followable(self._layout, self._writer.head)
        intent = self._layout.intent(self.name)
        with _saving("announcing a save", intent):
            self._write_file(intent, encode({"pid": os.getpid(), "parent": self._parent}), sync=False)
        self._announced = True

    def add(self, digest: bytes, chunk: memoryview) -> str:
        """Write a chunk; returns the name of the pack that it goes to."""
        self.announce()
        if self._pack is not None and self._pack.nbytes + len(chunk) > self._writer.pack_bytes:
            self._finish_pack()
        if self._pack is None:
            name = f"{self.name}-{len(self._packs):06d}"
            self._packs.append(name)
            with _saving("creating a pack", self._layout.pack(name)):
                self._pack = PackWriter(self._disk, self._layout.pack(name))
        with _saving("writing a pack", self._layout.pack(self._packs[-1])):
            self._pack.add(digest, chunk)
        return self._packs[-1]

    def seal(self) -> None:
        """Make all that was added durable."""
        if self._pack is not None:
            self._finish_pack()
        if self._packs:
            with _saving("syncing", self._layout.packs):
                self._disk.fsync_dir(self._layout.packs)

    def commit(self, info: VersionInfo, manifest: Manifest) -> VersionInfo:
        """Make it the head. The info's version and time are set here.

        Raises:
            Fenced: the number was taken; nothing of ours is in the store, and this writer has stopped.
            StoreFull, StoreUnwritable, StoreFailed: no version, or, if only its last sync failed, one that
                may not outlive a power cut.
        """
        assert self._pack is None, "seal comes first"
        self.announce()
        info = replace(info, version=self._writer.head + 1, time=self._writer.clock())
        final = self._layout.version(info.version)
        waiting = temporary(self._layout.versions / self.name)
        with _saving("committing", final):
            self._write_file(waiting, encode_version(info, manifest), sync=True)
            self._link(waiting, final)
            self._linked = True
            self._writer.head = info.version
            self._disk.fsync_dir(self._layout.versions)
        return info

    def follow(self, head: int) -> None:
        """Learn from rank 0 where the head is now: once it has moved, what was written here is part of a version."""
        self._linked = self._linked or head > self._writer.head
        self._writer.head = head

    def _link(self, waiting: Path, final: Path) -> None:
        try:
            self._disk.link(waiting, final)
        except OSError as error:
            # A network file system may repeat a link that had succeeded, and then says that the name is taken.
            if self._disk.same_file(waiting, final):
                return
            if isinstance(error, FileExistsError):
                self._writer.fenced = True
                raise Fenced(_fenced(final)) from error
            raise

    def _finish_pack(self) -> None:
        assert self._pack is not None
        with _saving("writing a pack", self._layout.pack(self._packs[-1])):
            self._pack.finish()
        self.new_bytes += self._pack.nbytes
        self._pack = None

    def _write_file(self, path: Path, data: bytes, *, sync: bool) -> None:
        fd = self._disk.create(path)
        try:
            self._disk.write(fd, [memoryview(data)])
            if sync:
                self._disk.fsync(fd)
        finally:
            self._disk.close(fd)

    def _take_back(self) -> None:
        """Remove what is not needed; what resists is left to the next writer, and harms nobody."""
        paths = [temporary(self._layout.versions / self.name)]
        if not self._linked:
            for name in self._packs:
                paths += [temporary(self._layout.pack(name)), self._layout.pack(name)]
        for path in [*paths, self._layout.intent(self.name)]:
            with suppress(OSError):
                self._disk.unlink(path)

    def __enter__(self) -> Save:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pack is not None:
            with suppress(OSError):
                self._pack.abandon()
            self._pack = None
        # Rank 0 may have committed, or may yet commit, what this rank wrote.
        if not (isinstance(error, RankLost) and error.rank == 0):
            self._take_back()


def _expect_followable(layout: Layout, head: int) -> None:
    """Raises StoreDamaged where the head's number is the last that there can be, which no series of saves reaches."""
    if head >= MAX_VERSION:
        raise StoreDamaged(
            f"{layout.version(head)}: no version can follow this number: what is not a run's own file, move out "
            "of the folder",
            version=head,
        )


def _fenced(path: Path) -> str:
    return (
        f"{path} is there already: another writer committed it although this one holds the lock. This one has "
        "stopped and will not write again; find out which of the two should go on"
    )


def _make_root(layout: Layout, disk: Disk) -> None:
    with naming("creating the store", layout.root):
        for folder in reversed([layout.root, *layout.root.parents]):
            if not disk.is_real_dir(folder) and disk.make_dir(folder) and folder != layout.root:
                disk.fsync_dir(folder.parent)
        _refuse_others(layout, disk)


def _refuse_others(layout: Layout, disk: Disk) -> None:
    """Raises NoStore for a folder that holds other things. Asked before the lock file is written into it."""
    names = disk.names(layout.root)
    ours = {*FOLDERS, layout.lock.name, temporary(layout.format).name}
    others = [name for name in names if name not in ours]
    if layout.format.name not in names and others:
        raise NoStore(
            f"{layout.root} is no version store and not empty (it has {others[0]}): choose another folder"
        )


def _make_format(layout: Layout, disk: Disk, chunk_bytes: int | None) -> None:
    """Make a store of an empty folder, or of one in which a writer was stopped while it did."""
    with naming("creating the store", layout.root):
        names = disk.names(layout.root)
        if layout.format.name in names:
            for name in MAY_LACK:
                if name not in names:
                    disk.make_dir(layout.root / name)
            # Whoever gave it its name may have been stopped before that was durable.
            disk.fsync_dir(layout.root)
            return
        disk.fsync_dir(layout.root.parent)
        for name in FOLDERS:
            disk.make_dir(layout.root / name)
        waiting = temporary(layout.format)
        disk.unlink(waiting)
        fd = disk.create(waiting)
        try:
            disk.write(fd, [memoryview((Format() if chunk_bytes is None else Format(chunk_bytes)).encode())])
            disk.fsync(fd)
        finally:
            disk.close(fd)
        disk.rename(waiting, layout.format)
        disk.fsync_dir(layout.root)


def _remove_leftovers(layout: Layout, disk: Disk) -> None:
    """What a writer that was killed left behind. We hold its lock, so that it cannot live."""
    for folder, ours in (
        (layout.packs, lambda name: name.endswith(TEMPORARY)),
        (layout.versions, lambda name: name.endswith(TEMPORARY)),
        (layout.intents, lambda name: SAVE_NAME.fullmatch(name) is not None),
    ):
        with naming("removing leftovers", folder):
            for name in disk.names(folder):
                # A folder is nothing that a writer leaves: it stays, and is in nobody's way.
                if ours(name) and not disk.is_real_dir(folder / name):
                    disk.unlink(folder / name)
