"""The checkpointer: saves the parts of a run as versions, and restores them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, NoReturn, cast

from blake3 import blake3

from checkpoint.capture import Captured, Pool, Walked, capture
from checkpoint.compare import check_fit
from checkpoint.disk import Disk
from checkpoint.errors import CheckpointError, NotStorable, NoVersion, StoreDamaged, StoreFailed
from checkpoint.group import Group
from checkpoint.incremental import Lineage, Share, assemble, write_changes
from checkpoint.loading import LoadedTensors, can_take, load_tensors
from checkpoint.peers import INTEGER, OPTIONAL, SOLO, Codec, Peers
from checkpoint.share import share_codec
from checkpoint.strict import JSON, encode, mapping
from checkpoint.tree import Part, Tree, from_json, plain_json, to_json
from checkpoint.version import Manifest, VersionInfo, encode_version, header_from_json, header_to_json
from checkpoint.writer import Writer

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

_INFO: Codec[VersionInfo] = Codec(header_to_json, header_from_json)


@dataclass(frozen=True)
class _Fitting:
    """A version that was read and found to fit the live parts."""

    info: VersionInfo
    manifest: Manifest
    live: Walked

    def digest(self) -> str:
        """Of the version, and of the parts that are to be restored."""
        hasher = blake3(encode_version(self.info, self.manifest))
        hasher.update(encode(sorted(self.live.tree)))
        return hasher.hexdigest()


@dataclass(frozen=True)
class Restored:
    """What a restore did.

    Attributes:
        info: the header of the version that was restored.
        plain: the plain data of every part of the version, of those not asked for too; without the tensors.
        damaged: why a newer version was passed over; None if the version asked for was restored.
    """

    info: VersionInfo
    plain: Mapping[str, JSON]
    damaged: StoreDamaged | None = None


class Checkpointer:
    """A store of versions opened by the one process, or the one group of ranks, that writes it.

        with Checkpointer("run/versions") as checkpointer:
            if checkpointer.latest():
                checkpointer.restore(None, parts)
            …
            checkpointer.save(step, parts, {"loss": loss})

    `save` returns when everything is copied; finding what changed, writing and the commit happen in one
    thread behind. One save is in flight at a time. Its failure is raised by the next `save`, `wait` or
    `close`; the store then holds what it held before, and later saves work. Not to be used by two threads at
    once.

    With a group every rank opens one, and all make the same calls with state that is the same on all of them. A
    version is written once: each rank copies and writes its share, rank 0 checks that nothing is missing and
    commits, and all learn what came of it. What one rank raises all raise. A version says nothing about who wrote
    it: another number of ranks goes on from it.

    Args:
        path: the store's folder, made if absent; of a group the same for all.
        chunk_bytes: for a new store, what a tensor is cut into; an existing one must have it if it is given.
        group: the ranks that save together, a gloo group that is used for nothing else; None for one process.
            Its timeout bounds every wait for a rank that lives and says nothing. Destroying it is the caller's
            part.
        disk: the operations on files.

    Raises:
        StoreLocked, NoStore, UnknownFormat, StoreUnwritable, StoreFull, StoreFailed: as `Writer`.
        RankFailed, RankLost: another rank could not open it, or is gone. Every method may raise them.
    """

    def __init__(
        self,
        path: Path | str,
        chunk_bytes: int | None = None,
        *,
        group: ProcessGroup | None = None,
        disk: Disk | None = None,
    ) -> None:
        self._peers: Peers = SOLO if group is None else Group(group)
        self._writer = Writer(path, chunk_bytes=chunk_bytes, disk=disk, peers=self._peers)
        self._pool = Pool()
        self._lineage = Lineage()
        self._thread = ThreadPoolExecutor(1, "checkpoint-save")
        self._flight: Future[VersionInfo | None] | None = None
        self._acknowledged: VersionInfo | None = None
        self._closed = False

    def save(
        self,
        step: int,
        parts: Mapping[str, Part | Mapping[str, Tree]],
        summary: Mapping[str, JSON] | None = None,
    ) -> None:
        """Copy the parts and begin to make a version of them; waits first for the save before.

        Args:
            step: the training step that they stand at.
            parts: by name, objects with `state_dict()`, or trees.
            summary: plain data that `list` shows without reading the rest.

        Raises:
            NotStorable: by path, what cannot be stored; nothing was copied.
            StoreFull, StoreUnwritable, StoreFailed, Fenced: the save before failed; nothing was copied.
        """
        begun = time.perf_counter()
        self.wait()
        try:
            kept = mapping(to_json(dict(summary or {}), "summary", lambda name, value: None), "summary")
            captured = capture(parts, self._pool, self._peers)
        except NotStorable as error:
            # The others may have nothing to object, and then wait for this rank's share.
            self._flight = self._thread.submit(self._abstain, error)
            raise
        info = VersionInfo(
            version=self._writer.head + 1,
            parent=self._lineage.parent,
            step=step,
            time=0.0,
            new_bytes=0,
            total_bytes=sum(spec.nbytes for spec in captured.specs),
            blocked_s=time.perf_counter() - begun,
            summary=mapping(plain_json(kept), "summary"),
        )
        self._flight = self._thread.submit(self._write, captured, info)

    def wait(self) -> VersionInfo | None:
        """Wait for the save in flight; the last version that is durable, or None if this checkpointer made none.

        Raises:
            StoreFull, StoreUnwritable, StoreFailed, Fenced: that save failed.
        """
        if self._flight is not None:
            try:
                self._acknowledged = self._flight.result()
            finally:
                # Interrupted in its wait, the caller still owes the save in flight a look.
                if self._flight.done():
                    self._flight = None
        return self._acknowledged

    def latest(self) -> int | None:
        """The head; None if there is no version. A rank may learn a moment after rank 0 of the save in flight."""
        return self._writer.head or None

    def restore(
        self, version: int | None, parts: Mapping[str, Part], *, allow_older: bool = False
    ) -> Restored:
        """Load a version into live parts, and make it the parent of the next save.

        All is compared before anything is changed. Then every tensor that a part's `state_dict()` gives is
        overwritten in place, others are made, each chunk is verified, and `load_state_dict` is called with
        the tree.

        Args:
            version: its number; None for the latest.
            parts: by name, the parts wanted; others of the version are only shown in `Restored.plain`.
            allow_older: on damage, go on from the newest older version that is whole.

        Raises:
            NoVersion: there is none such.
            WrongState: the version does not fit; every difference is listed; nothing was changed.
            StoreDamaged: names version, tensor, pack and the last good version. The parts may have been
                overwritten in part.
        """
        self.wait()
        wanted = self._peers.first("choosing a version", lambda: self._chosen(version), INTEGER)
        try:
            return self._restore(wanted, parts)
        except StoreDamaged as damage:
            good = self._peers.first(
                "seeking a whole version", lambda: self._writer.store.last_good(wanted), OPTIONAL
            )
            named = StoreDamaged(
                damage.found,
                version=wanted,
                tensor=damage.tensor,
                pack=damage.pack,
                last_good=good,
                sought=True,
            )
            if good is None or not allow_older:
                raise named from damage
            return replace(self._restore(good, parts), damaged=named)

    def close(self) -> None:
        """Wait for the save in flight and let the store go. Raises what `wait` raises, after letting it go."""
        if self._closed:
            return
        self._closed = True
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._writer.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"and the last save failed: {failure}")

    def _write(self, captured: Captured, info: VersionInfo) -> VersionInfo:
        begun = time.perf_counter()
        lineage = self._usable_lineage()
        with self._writer.begin(lineage.parent) as save:

            def write() -> Share:
                save.announce()
                return write_changes(
                    captured, lineage, save, self._writer.store.format.chunk_bytes, info.blocked_s
                )

            shares = self._peers.every("writing a version", write, share_codec(captured, lineage))
            manifest, following = self._peers.together(
                "checking a version", lambda: assemble(captured, lineage, shares)
            )

            def commit() -> VersionInfo:
                others = {pack for share in shares[1:] for pack in share.packs.values()}
                if missing := self._writer.missing_packs(others):
                    raise StoreFailed(
                        f"{self._writer.layout.pack(min(missing))}: written by another rank, and not to be found "
                        "by rank 0: all ranks need one file system"
                    )
                made = replace(
                    info,
                    parent=lineage.parent,
                    new_bytes=sum(share.new_bytes for share in shares),
                    blocked_s=max(share.blocked_s for share in shares),
                    written_s=time.perf_counter() - begun,
                )
                return save.commit(made, manifest)

            try:
                info = self._peers.first("committing a version", commit, _INFO)
            finally:
                # A commit that failed in its last sync has moved the head all the same.
                save.follow(self._peers.first("settling", lambda: self._writer.head, INTEGER))
        self._lineage = replace(following, parent=info.version)
        return info

    def _abstain(self, error: NotStorable) -> VersionInfo | None:
        """Take part in a save of the others without a share: they fail. The caller has had the error."""

        def refuse() -> NoReturn:
            raise error

        with suppress(CheckpointError):
            self._usable_lineage()
            self._peers.together("writing a version", refuse)
        return self._acknowledged

    def _usable_lineage(self) -> Lineage:
        """The lineage, or an empty one if packs that it relies on are gone."""
        missing = self._peers.first(
            "beginning a version",
            lambda: len(self._writer.missing_packs(set(self._lineage.packs.values()))),
            INTEGER,
        )
        return Lineage(self._lineage.parent) if missing else self._lineage

    def _chosen(self, version: int | None) -> int:
        """The version to restore, by its number or the latest."""
        wanted = self.latest() if version is None else version
        if wanted is None:
            raise NoVersion(f"{self._writer.store.path} has no versions yet")
        return wanted

    def _fitting(self, version: int, parts: Mapping[str, Part]) -> _Fitting:
        """Read a version and compare it with the live parts."""
        info, manifest = self._writer.store.read(version)
        live = Walked(parts)
        check_fit(version, manifest, parts, live)
        return _Fitting(info, manifest, live)

    def _restore(self, version: int, parts: Mapping[str, Part]) -> Restored:
        fitting = self._peers.together("comparing", lambda: self._fitting(version, parts))
        self._peers.agree(f"version {version} and the parts wanted of it", fitting.digest)
        loaded = self._peers.together("loading", lambda: self._load(version, fitting, parts))
        self._lineage = Lineage(version, loaded.records, loaded.packs)
        plain = {name: plain_json(tree) for name, tree in fitting.manifest.tree.items()}
        return Restored(fitting.info, MappingProxyType(plain))

    def _load(self, version: int, fitting: _Fitting, parts: Mapping[str, Part]) -> LoadedTensors:
        """Overwrite the parts with what the version holds of them."""
        store, manifest, live = self._writer.store, fitting.manifest, fitting.live
        leaves = {part: manifest.leaves(part) for part in parts}
        targets: dict[int, list[torch.Tensor]] = {}
        replaced: set[str] = set()
        for names in leaves.values():
            for name, index in names.items():
                here = live.by_name.get(name)
                found = targets.setdefault(index, [])
                if here is None or not can_take(live.tensors[here], manifest.tensors[index].spec):
                    replaced.add(name)
                elif not any(live.tensors[here] is other for other in found):
                    found.append(live.tensors[here])
        loaded = load_tensors(store, version, manifest, list(targets), targets, fingerprints=True)
        for name, part in parts.items():
            part.load_state_dict(
                cast(
                    "dict[str, Tree]",
                    from_json(
                        manifest.tree[name],
                        lambda path, index: (
                            loaded.tensors[index] if path in replaced else live.tensors[live.by_name[path]]
                        ),
                        name,
                    ),
                )
            )
        return loaded
