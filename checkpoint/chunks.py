"""Finding chunks in packs, and reading them: nothing leaves here that does not match its digest."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from blake3 import blake3
from xxhash import xxh3_128_digest

from checkpoint.disk import Disk
from checkpoint.errors import StoreDamaged, naming
from checkpoint.layout import PACK_NAME, Layout
from checkpoint.pack import Place, read_index
from checkpoint.strict import Malformed

# A job is handed to a thread for this much or this many: a hand-over costs what hashing 100 KB does.
_JOB_BYTES = 4 << 20
_JOB_CHUNKS = 256
_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk that is wanted.

    Attributes:
        digest: names it.
        nbytes: its length.
        tensor: whose it is, for errors.
        into: where it goes; None to check it only.
    """

    digest: bytes
    nbytes: int
    tensor: str
    into: memoryview | None = None


class Chunks:
    """The chunks of a store's packs. Indexes are read once and kept; packs are opened while they are read."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout
        self._places: dict[bytes, tuple[str, Place]] = {}
        # Where packs hold a chunk twice: a copy that is whole stands in for one that rotted.
        self._copies: dict[bytes, list[tuple[str, Place]]] = {}
        self._read: set[str] = set()
        self._broken: dict[str, str] = {}
        self._searched_all = False
        self._lock = threading.Lock()

    def look_in(self, packs: Iterable[str]) -> None:
        """Read the indexes of these packs. One that cannot be read counts when a chunk of it is missed."""
        for name in packs:
            if name not in self._read:
                self._read.add(name)
                self._read_pack(name)

    def pack_of(self, span: Span, version: int) -> str:
        """The pack that holds a chunk of the span's digest and length. Raises StoreDamaged if none does."""
        return self._find(span, version)[0]

    def read(self, spans: Sequence[Span], version: int, *, fingerprints: bool = False) -> list[bytes]:
        """Read and verify; returns the spans' fingerprints if asked for, else empty bytes.

        Raises:
            StoreDamaged: a chunk is not there or is not what was written. Its `into` then holds anything.
        """
        by_pack: dict[str, list[tuple[int, Place]]] = {}
        for index, span in enumerate(spans):
            pack, place = self._find(span, version)
            by_pack.setdefault(pack, []).append((index, place))
        found = [b""] * len(spans)
        for pack, wanted in by_pack.items():
            wanted.sort(key=lambda pair: pair[1].offset)
            path = self._layout.pack(pack)
            with naming("reading", path):
                fd = self._disk.open(path)
                try:
                    self._read_from(fd, pack, wanted, spans, version, found if fingerprints else None)
                finally:
                    self._disk.close(fd)
        return found

    def _read_from(
        self,
        fd: int,
        pack: str,
        wanted: list[tuple[int, Place]],
        spans: Sequence[Span],
        version: int,
        found: list[bytes] | None,
    ) -> None:
        def run(job: list[tuple[int, Place]]) -> None:
            scratch = bytearray(
                max((place.nbytes for index, place in job if spans[index].into is None), default=0)
            )
            for index, place in job:
                span = spans[index]
                view = span.into if span.into is not None else memoryview(scratch)[: place.nbytes]
                reason = self._read_place(fd, place, span.digest, view)
                if reason is not None and not self._read_copy(pack, span, view):
                    raise StoreDamaged(
                        f"the {place.nbytes} bytes at {place.offset} {reason}",
                        version=version,
                        tensor=span.tensor,
                        pack=self._layout.pack(pack).name,
                    )
                if found is not None:
                    found[index] = xxh3_128_digest(view)

        jobs = list(_jobs(wanted))
        if len(jobs) == 1 or _THREADS == 1:
            for job in jobs:
                run(job)
            return
        with ThreadPoolExecutor(_THREADS, "checkpoint-read") as threads:
            for _ in threads.map(run, jobs):
                pass

    def _read_place(self, fd: int, place: Place, digest: bytes, view: memoryview) -> str | None:
        """Read a chunk; None if it is what was written, else what is wrong with it."""
        try:
            count = self._disk.read_into(fd, view, place.offset)
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if count != place.nbytes or blake3(view).digest() != digest:
            return f"are not what was written: their digest should be {digest.hex()[:16]}…"
        return None

    def _read_copy(self, bad: str, span: Span, view: memoryview) -> bool:
        """Read a chunk from another pack that holds it; whether one does, and whole."""
        with self._lock:
            self._look_everywhere()
        for pack, place in self._copies.get(span.digest, []):
            if pack == bad or place.nbytes != span.nbytes:
                continue
            try:
                fd = self._disk.open(self._layout.pack(pack))
            except OSError:
                continue
            try:
                if self._read_place(fd, place, span.digest, view) is None:
                    # What is saved next refers to the copy that was read.
                    self._places[span.digest] = (pack, place)
                    return True
            finally:
                self._disk.close(fd)
        return False

    def _find(self, span: Span, version: int) -> tuple[str, Place]:
        if span.digest not in self._places:
            self._look_everywhere()
        entry = self._places.get(span.digest)
        if entry is None:
            pack, reason = next(iter(self._broken.items()), (None, "no pack holds it"))
            raise StoreDamaged(
                f"a chunk of {span.nbytes} bytes with the digest {span.digest.hex()[:16]}… cannot be found: {reason}",
                version=version,
                tensor=span.tensor,
                pack=None if pack is None else self._layout.pack(pack).name,
            )
        if entry[1].nbytes != span.nbytes:
            raise StoreDamaged(
                f"a chunk of {entry[1].nbytes} bytes where {span.nbytes} are expected",
                version=version,
                tensor=span.tensor,
                pack=self._layout.pack(entry[0]).name,
            )
        return entry

    def _look_everywhere(self) -> None:
        # Packs may have been rewritten since the version was: what a pack holds, only its own index says.
        if not self._searched_all:
            self._searched_all = True
            with naming("listing", self._layout.packs):
                names = self._disk.names(self._layout.packs)
            stems = [name.removesuffix(".pack") for name in names if name.endswith(".pack")]
            self.look_in(stem for stem in stems if PACK_NAME.fullmatch(stem))

    def _read_pack(self, name: str) -> None:
        try:
            fd = self._disk.open(self._layout.pack(name))
        except OSError as error:
            self._broken[name] = f"the pack cannot be opened ({error.strerror})"
            return
        try:
            with naming("reading", self._layout.pack(name)):
                places = read_index(self._disk, fd)
        except Malformed as error:
            self._broken[name] = str(error)
            return
        finally:
            self._disk.close(fd)
        for place in places:
            first = self._places.setdefault(place.digest, (name, place))
            if first[0] != name:
                self._copies.setdefault(place.digest, [first]).append((name, place))


def _jobs(wanted: list[tuple[int, Place]]) -> Iterable[list[tuple[int, Place]]]:
    job: list[tuple[int, Place]] = []
    size = 0
    for pair in wanted:
        job.append(pair)
        size += pair[1].nbytes
        if size >= _JOB_BYTES or len(job) >= _JOB_CHUNKS:
            yield job
            job, size = [], 0
    if job:
        yield job
