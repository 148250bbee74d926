"""The disk refuses one operation after the other; bytes rot; files are not what they should be."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from blake3 import blake3

from checkpoint import (
    JSON,
    Checkpointer,
    CheckpointError,
    Fenced,
    NoStore,
    Store,
    StoreDamaged,
    StoreFailed,
    StoreFull,
    StoreUnwritable,
    Tree,
    UnknownFormat,
    strict,
)
from checkpoint.disk import Disk
from checkpoint.pack import ENTRY
from checkpoint.version import PREFIX
from tests.checkpoint.disks import Failing, Watched
from tests.checkpoint.states import Box, all_whole, bits, same, taken


def state(step: int) -> dict[str, Tree]:
    frozen = torch.arange(60, dtype=torch.int32)
    return {
        "frozen": frozen,
        "changes": torch.full((50,), float(step)),
        "small": torch.tensor(step),
        "n": step,
    }


def make(path: Path, versions: int, chunk_bytes: int = 64) -> None:
    with Checkpointer(path, chunk_bytes, disk=Watched()) as checkpointer:
        for step in range(1, versions + 1):
            checkpointer.save(step, {"a": state(step), "b": {"x": torch.full((5,), step)}})


def files(path: Path) -> dict[str, int]:
    return {str(file.relative_to(path)): file.stat().st_size for file in path.rglob("*") if file.is_file()}


def operations() -> list[str]:
    """What one save does."""
    with tempfile.TemporaryDirectory() as folder:
        return _save_with(Path(folder) / "v", Failing(None, 0))[1]


def _save_with(path: Path, disk: Failing) -> tuple[CheckpointError | None, list[str]]:
    """A store of one version, and a second save on the disk; the error of it."""
    with Checkpointer(path, 64, disk=disk) as checkpointer:
        checkpointer.save(1, {"a": state(1)})
        checkpointer.wait()
        before = files(path)
        disk.armed = True
        checkpointer.save(2, {"a": state(2)})
        error: CheckpointError | None = None
        try:
            checkpointer.wait()
        except CheckpointError as caught:
            error = caught
        disk.armed = False
        done = list(disk.done)
        if error is not None and checkpointer.latest() == 1:
            assert files(path) == before, "space was not given back"
        checkpointer.save(3, {"a": state(3)})
        checkpointer.wait()
        latest = checkpointer.latest()
        assert same(taken(checkpointer, latest, "a")["a"], state(3))
    for version in all_whole(path):
        with Checkpointer(path) as checkpointer:
            found = taken(checkpointer, version, "a")["a"]
            assert same(found, state(int(str(found["n"]))))
    return error, done


EVERY = operations()


def test_a_save_is_these_operations() -> None:
    pack, version = ["create", "write", "fsync", "rename"], ["create", "write", "fsync", "link"]
    assert ["create", "write", *pack, "fsync_dir", *version, "fsync_dir"] == EVERY


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EIO, StoreFailed),
        (errno.EROFS, StoreUnwritable),
    ],
)
@pytest.mark.parametrize("at", range(len(EVERY)), ids=[f"{index}-{name}" for index, name in enumerate(EVERY)])
def test_disk_full(tmp_path: Path, at: int, code: int, kind: type[CheckpointError]) -> None:
    error, _ = _save_with(tmp_path / "v", Failing(at, code))
    assert type(error) is kind
    assert isinstance(error.__cause__, OSError)
    assert str(tmp_path / "v") in str(error)


@pytest.mark.parametrize("at", range(16))
def test_a_store_that_could_not_be_made_is_made_later(tmp_path: Path, at: int) -> None:
    disk = Failing(at, errno.ENOSPC)
    disk.armed = True
    try:
        Checkpointer(tmp_path / "run" / "v", 64, disk=disk).close()
    except StoreFull:
        assert len(disk.done) == at + 1
    else:
        assert len(disk.done) <= at
    make(tmp_path / "run" / "v", 1)
    assert all_whole(tmp_path / "run" / "v") == [1]


def test_failed_save_is_not_latest(tmp_path: Path) -> None:
    disk = Failing(EVERY.index("link"), errno.EIO)
    with Checkpointer(tmp_path / "v", disk=disk) as checkpointer:
        checkpointer.save(1, {"a": state(1)})
        checkpointer.wait()
        disk.armed = True
        checkpointer.save(2, {"a": state(2)})
        with pytest.raises(StoreFailed):
            checkpointer.save(3, {"a": state(3)})
        assert checkpointer.latest() == 1
        checkpointer.save(4, {"a": state(4)})
        info = checkpointer.wait()
        assert info is not None
        assert (info.version, info.step, info.parent) == (2, 4, 1)


def test_a_fenced_writer_stops(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.restore(1, {})
        other = tmp_path / "v" / "versions" / f"{2:020d}"
        other.write_bytes(b"another writer's")
        before = files(tmp_path / "v")
        for step in (2, 3):
            checkpointer.save(step, {"a": state(step)})
            with pytest.raises(Fenced, match="another writer committed it"):
                checkpointer.wait()
        assert other.read_bytes() == b"another writer's"
        assert files(tmp_path / "v") == before


def test_a_link_that_succeeded_but_was_reported_taken_is_ours(tmp_path: Path) -> None:
    class Repeating(Disk):
        def link(self, old: Path, new: Path) -> None:
            super().link(old, new)
            super().link(old, new)

    with Checkpointer(tmp_path / "v", disk=Repeating()) as checkpointer:
        checkpointer.save(1, {"a": state(1)})
        info = checkpointer.wait()
        assert info is not None
        assert info.version == 1
    assert all_whole(tmp_path / "v") == [1]


def test_packs_that_vanished_are_written_anew(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"a": state(1)})
        checkpointer.wait()
        for pack in (tmp_path / "v" / "packs").iterdir():
            pack.unlink()
        checkpointer.save(2, {"a": state(1)})
        checkpointer.wait()
        assert same(taken(checkpointer, 2, "a")["a"], state(1))


def flipped(data: bytes, at: int, mask: int) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def test_every_byte_of_a_version_file_is_covered(tmp_path: Path) -> None:
    make(tmp_path / "v", 2)
    store = Store(tmp_path / "v")
    file = store.layout.version(2)
    data = file.read_bytes()
    for at in range(len(data)):
        file.write_bytes(flipped(data, at, 1 << (at % 8)))
        with pytest.raises(StoreDamaged, match="version 2 is damaged"):
            store.read(2)
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(StoreDamaged, match="version 2 is damaged"):
            store.info(2)
    file.write_bytes(data + b"\0")
    with pytest.raises(StoreDamaged):
        store.info(2)


def test_every_byte_of_the_header_is_covered_by_its_own_checksum(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    store = Store(tmp_path / "v")
    file = store.layout.version(1)
    data = file.read_bytes()
    header_end = PREFIX.size + PREFIX.unpack_from(data)[1] + 32
    for at in range(header_end):
        file.write_bytes(flipped(data, at, 0x10))
        with pytest.raises(StoreDamaged):
            store.info(1)


def test_bit_rot(tmp_path: Path) -> None:
    make(tmp_path / "v", 3)
    store = Store(tmp_path / "v")
    third = next(name for name in store.read(3)[1].packs if name not in store.read(2)[1].packs)
    chance = random.Random(11)
    shared = [name for name in store.read(3)[1].packs if name in store.read(1)[1].packs]
    for index in range(300):
        path = store.layout.pack(third if index % 3 else shared[0])
        data = path.read_bytes()
        at = chance.randrange(len(data))
        path.write_bytes(flipped(data, at, 1 << chance.randrange(8)))
        with pytest.raises(StoreDamaged) as caught:
            all_whole(tmp_path / "v")
        assert caught.value.version in (1, 2, 3)
        assert caught.value.tensor is not None
        assert caught.value.tensor.split("/")[0] in ("a", "b")
        assert caught.value.pack == path.name
        path.write_bytes(data)
    assert all_whole(tmp_path / "v") == [1, 2, 3]


def test_packs_cut_short_are_found(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    store = Store(tmp_path / "v")
    path = store.layout.pack(store.read(1)[1].packs[0])
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(StoreDamaged) as caught:
            Store(tmp_path / "v").verify(1)
        assert caught.value.pack == path.name
        assert caught.value.tensor is not None
    path.unlink()
    with pytest.raises(StoreDamaged, match="cannot be opened"):
        Store(tmp_path / "v").verify(1)


def damage_newest(path: Path) -> str:
    """Flip a bit of a chunk that only the newest version has; the tensor's name."""
    store = Store(path)
    newest = store.versions()[-1]
    manifest = store.read(newest)[1]
    pack = next(name for name in manifest.packs if name not in store.read(newest - 1)[1].packs)
    file = store.layout.pack(pack)
    file.write_bytes(flipped(file.read_bytes(), 20, 4))
    return "a/changes"


def test_damage_names_the_last_good_version_and_only_allow_older_goes_on(tmp_path: Path) -> None:
    make(tmp_path / "v", 4)
    tensor = damage_newest(tmp_path / "v")
    shutil.copy(tmp_path / "v/versions" / f"{4:020d}", tmp_path / "kept")
    (tmp_path / "v/versions" / f"{3:020d}").write_bytes(b"rotten")
    boxes = {"a": Box(state(0)), "b": Box({"x": torch.zeros(5, dtype=torch.int64)})}
    with Checkpointer(tmp_path / "v") as checkpointer:
        with pytest.raises(
            StoreDamaged, match=r"last good version is 2: go on from it with --allow-older"
        ) as caught:
            checkpointer.restore(None, boxes)
        assert (caught.value.version, caught.value.tensor, caught.value.last_good) == (4, tensor, 2)
        assert caught.value.exit_code == 1
        restored = checkpointer.restore(None, boxes, allow_older=True)
        assert restored.info.version == 2
        assert restored.damaged is not None
        assert restored.damaged.version == 4
        assert same(boxes["a"].state, state(2))
        checkpointer.save(9, {name: box.state for name, box in boxes.items()})
        info = checkpointer.wait()
        assert info is not None
        assert (info.version, info.parent, info.new_bytes) == (5, 2, 0)


def test_no_good_version_at_all(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    (tmp_path / "v/versions" / f"{1:020d}").write_bytes(b"rotten")
    with (
        Checkpointer(tmp_path / "v") as checkpointer,
        pytest.raises(StoreDamaged, match="No older version is whole either"),
    ):
        checkpointer.restore(None, {}, allow_older=True)


def test_a_sector_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    class Broken(Disk):
        def read_into(self, fd: int, view: memoryview, offset: int) -> int:
            if len(view) == 20:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read_into(fd, view, offset)

    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"a": {"x": torch.zeros(5)}})
    with pytest.raises(StoreDamaged, match=r"tensor a/x.*cannot be read \(Input/output error\)"):
        Store(tmp_path / "v", Broken()).verify(1)


def test_rotten_content_is_not_referred_to_again(tmp_path: Path) -> None:
    make(tmp_path / "v", 2)
    damage_newest(tmp_path / "v")
    with Checkpointer(tmp_path / "v") as checkpointer:
        # Part b of version 2 is whole: what version 2 holds of part a was not verified, so it is written anew.
        checkpointer.restore(2, {"b": Box({"x": torch.zeros(5, dtype=torch.int64)})})
        checkpointer.save(3, {"a": state(2)})
        checkpointer.wait()
        assert same(taken(checkpointer, 3, "a")["a"], state(2))
    assert Store(tmp_path / "v").verify(3).version == 3


def test_a_whole_copy_stands_in_for_a_rotten_one(tmp_path: Path) -> None:
    make(tmp_path / "v", 2)
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(3, {"a": state(2)})  # without a restore: all of it is written again
    damage_newest(tmp_path / "v")
    with Checkpointer(tmp_path / "v") as checkpointer:
        found = taken(checkpointer, 3, "a")["a"]
        assert same(found, state(2))
        checkpointer.save(4, {"a": found})
    for pack in Store(tmp_path / "v").read(3)[1].packs:
        if pack not in Store(tmp_path / "v").read(4)[1].packs:
            (tmp_path / "v" / "packs" / f"{pack}.pack").unlink()
    assert Store(tmp_path / "v").verify(4).step == 4


# Files that are not what they should be


@pytest.mark.parametrize("name", ["versions", "packs", "intents", "tags"])
def test_a_folder_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path / "v", 1)
    (tmp_path / "v" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "v" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreDamaged, match="is a link"):
        Store(tmp_path / "v")


def test_files_that_are_links_or_pipes_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    store = Store(tmp_path / "v")
    version, pack = store.layout.version(1), store.layout.pack(store.read(1)[1].packs[0])
    for path in (version, pack, store.layout.format, store.layout.lock):
        path.rename(tmp_path / "kept")
        path.symlink_to(tmp_path / "kept")
        with (
            pytest.raises(CheckpointError, match="symbolic link"),
            Checkpointer(tmp_path / "v") as checkpointer,
        ):
            checkpointer.restore(1, {"b": Box({"x": torch.zeros(5, dtype=torch.int64)})})
        path.unlink()
        if path != store.layout.lock:
            os.mkfifo(path)
            with pytest.raises(CheckpointError, match="regular file"):
                Store(tmp_path / "v").verify(1)
            path.unlink()
        (tmp_path / "kept").rename(path)
    assert all_whole(tmp_path / "v") == [1]


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("mine")
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(NoStore, match="it has notes") as caught:
        Checkpointer(tmp_path)
    assert caught.value.exit_code == 2
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"lock": "mine", "notes": "mine"}
    with pytest.raises(NoStore, match="no FORMAT"):
        Store(tmp_path / "nowhere")


def test_a_file_where_a_folder_is_due(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnwritable, match="Not a directory") as caught:
        Checkpointer(tmp_path / "file" / "versions")
    assert caught.value.exit_code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreUnwritable, match="Permission denied"):
        Checkpointer(tmp_path / "v")


def test_a_refused_folder(tmp_path: Path) -> None:
    class Refusing(Disk):
        def make_dir(self, path: Path) -> bool:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with pytest.raises(StoreUnwritable, match="Permission denied"):
        Checkpointer(tmp_path / "v", disk=Refusing())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"format":2,"digest":"blake4"}', UnknownFormat),
        ('{"format":1,"digest":"md5","fingerprint":"xxh3-128","chunk_bytes":64}', StoreDamaged),
        ('{"format":1,"digest":"blake3","fingerprint":"xxh3-128","chunk_bytes":0}', StoreDamaged),
        ('{"format":1,"digest":"blake3","fingerprint":"xxh3-128","chunk_bytes":1e99}', StoreDamaged),
        ("[]", StoreDamaged),
        ("", StoreDamaged),
        ("[" * 4000, StoreDamaged),
        (" " * 5000, StoreDamaged),
    ],
)
def test_a_format_that_is_not_ours_is_refused(tmp_path: Path, text: str, kind: type[CheckpointError]) -> None:
    make(tmp_path / "v", 1)
    (tmp_path / "v" / "FORMAT").write_text(text)
    for open_it in (Store, Checkpointer):
        with pytest.raises(kind):
            open_it(tmp_path / "v")


def forged(data: bytes, change: Callable[[dict[str, JSON], dict[str, JSON], list[bytes]], None]) -> bytes:
    """A version file with other contents and right checksums."""
    _, header_bytes, body_bytes, _ = PREFIX.unpack_from(data)
    body_at = PREFIX.size + header_bytes + 32
    header = dict(strict.mapping(strict.decode(data[PREFIX.size : body_at - 32], ""), ""))
    body = dict(strict.mapping(strict.decode(data[body_at : body_at + body_bytes], ""), ""))
    rest = data[body_at + body_bytes : -32]
    roots = [rest[at : at + 32] for at in range(0, len(rest), 32)]
    change(header, body, roots)
    new_header, new_body = strict.encode(header), strict.encode(body)
    head = PREFIX.pack(b"HRVERS1\n", len(new_header), len(new_body), len(roots)) + new_header
    whole = head + blake3(head).digest() + new_body + b"".join(roots)
    return whole + blake3(whole).digest()


def tensor_is(*fields: JSON) -> Callable[[dict[str, JSON], dict[str, JSON], list[bytes]], None]:
    def change(header: dict[str, JSON], body: dict[str, JSON], roots: list[bytes]) -> None:
        body["tensors"] = [list(fields)]
        body["tree"] = {"a": {"x": {"$": 0}}}
        del roots[1:]

    return change


def body_is(**fields: JSON) -> Callable[[dict[str, JSON], dict[str, JSON], list[bytes]], None]:
    return lambda header, body, roots: body.update(fields)


def header_is(**fields: JSON) -> Callable[[dict[str, JSON], dict[str, JSON], list[bytes]], None]:
    return lambda header, body, roots: header.update(fields)


def deep(levels: int) -> JSON:
    value: JSON = 0
    for _ in range(levels):
        value = [value]
    return value


FORGERIES: Mapping[str, Callable[[dict[str, JSON], dict[str, JSON], list[bytes]], None]] = {
    "huge tensor": tensor_is("float32", [2**40, 2**40]),
    "big tensor": tensor_is("float32", [2**44]),
    "negative": tensor_is("float32", [-1]),
    "float size": tensor_is("float32", [1.5]),
    "many dimensions": tensor_is("float32", [1] * 100),
    "odd type": tensor_is("__class__", [1]),
    "no shape": tensor_is("float32"),
    "piece outside": tensor_is("float32", [4], [[[2], [4]]]),
    "piece missing": tensor_is("float32", [4], [[[0], [2]]]),
    "no pieces": tensor_is("float32", [4], []),
    "overlap": tensor_is("float32", [4], [[[0], [3]], [[2], [1]]]),
    "pack path": body_is(packs=["../../../etc/passwd"]),
    "pack number": body_is(packs=[7]),
    "tree index": body_is(tree={"a": {"x": {"$": 99}}}),
    "tree negative": body_is(tree={"a": {"x": {"$": -1}}}),
    "tensor lost": body_is(tree={}),
    "part name": body_is(tree={"../a": {}}),
    "part list": body_is(tree={"a": []}),
    "deep": body_is(tree={"a": {"x": deep(150)}}),
    "no tensors": body_is(tensors=None),
    "other version": header_is(version=2),
    "zero": header_is(version=0),
    "text step": header_is(step="1"),
    "true step": header_is(step=True),
    "negative bytes": header_is(new_bytes=-1),
    "other total": header_is(total_bytes=1),
    "huge step": header_is(step=2**64),
    "parent": header_is(parent=0),
    "summary": header_is(summary=[]),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_hostile_store(tmp_path: Path, forgery: str) -> None:
    make(tmp_path / "v", 1)
    file = tmp_path / "v/versions" / f"{1:020d}"
    file.write_bytes(forged(file.read_bytes(), lambda header, body, roots: None))
    assert all_whole(tmp_path / "v") == [1]
    file.write_bytes(forged(file.read_bytes(), FORGERIES[forgery]))
    with pytest.raises(StoreDamaged):
        Store(tmp_path / "v").verify(1)
    with Checkpointer(tmp_path / "v") as checkpointer, pytest.raises(StoreDamaged):
        checkpointer.restore(1, {"a": Box({"x": torch.zeros(1)})})


def test_a_tensor_that_claims_more_than_its_chunks_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    file = tmp_path / "v/versions" / f"{1:020d}"
    size = 2**40

    def change(header: dict[str, JSON], body: dict[str, JSON], roots: list[bytes]) -> None:
        tensor_is("uint8", [size])(header, body, roots)
        header["total_bytes"] = size

    file.write_bytes(forged(file.read_bytes(), change))
    with Checkpointer(tmp_path / "v") as checkpointer, pytest.raises(StoreDamaged):
        taken(checkpointer, 1, "a")


@pytest.mark.parametrize("prefix", [(2**60, 1, 1), (1, 2**60, 1), (1, 1, 2**60), (0, 0, 0)])
def test_sizes_out_of_nowhere_are_refused(tmp_path: Path, prefix: tuple[int, int, int]) -> None:
    make(tmp_path / "v", 1)
    file = tmp_path / "v/versions" / f"{1:020d}"
    file.write_bytes(PREFIX.pack(b"HRVERS1\n", *prefix) + file.read_bytes()[PREFIX.size :])
    with pytest.raises(StoreDamaged):
        Store(tmp_path / "v").read(1)


def repacked(
    data: bytes, change: Callable[[list[list[int | bytes]]], None], counts: Sequence[int] = ()
) -> bytes:
    """A pack with another index and a right checksum."""
    index_offset, entries, _ = struct.unpack_from("<QQQ", data, len(data) - 64)
    index = [
        list(entry) for entry in ENTRY.iter_unpack(data[index_offset : index_offset + entries * ENTRY.size])
    ]
    change(index)
    table = b"".join(ENTRY.pack(*entry) for entry in index)
    numbers = struct.pack("<QQQ", *(counts or (index_offset, len(index), 0)))
    return data[:index_offset] + table + numbers + blake3(table + numbers).digest() + b"HRPEND1\n"


def entry_is(at: int, value: int) -> Callable[[list[list[int | bytes]]], None]:
    def change(index: list[list[int | bytes]]) -> None:
        index[0][at] = value

    return change


PACK_FORGERIES: Mapping[str, tuple[Callable[[list[list[int | bytes]]], None], Sequence[int]]] = {
    "offset": (entry_is(1, 0), ()),
    "stored": (entry_is(2, 2**32 - 1), ()),
    "raw": (entry_is(3, 2**32 - 1), ()),
    "codec": (entry_is(4, 9), ()),
    "depth": (entry_is(5, 1), ()),
    "base": (entry_is(6, 1), ()),
    "count": (lambda index: None, (8, 2**60, 0)),
    "bases": (lambda index: None, (8, 1, 2**60)),
    "dropped": (lambda index: index.pop() and None, ()),
}


@pytest.mark.parametrize("forgery", PACK_FORGERIES)
def test_hostile_pack(tmp_path: Path, forgery: str) -> None:
    make(tmp_path / "v", 1)
    store = Store(tmp_path / "v")
    path = store.layout.pack(store.read(1)[1].packs[0])
    data = path.read_bytes()
    assert repacked(data, lambda index: None) == data
    path.write_bytes(repacked(data, *PACK_FORGERIES[forgery]))
    with pytest.raises(StoreDamaged) as caught:
        store.verify(1)
    assert caught.value.pack == path.name


def test_chunks_swapped_for_other_valid_ones_are_found(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    file = tmp_path / "v/versions" / f"{1:020d}"

    def swap(header: dict[str, JSON], body: dict[str, JSON], roots: list[bytes]) -> None:
        roots.reverse()

    file.write_bytes(forged(file.read_bytes(), swap))
    with pytest.raises(StoreDamaged, match="version 1"):
        Store(tmp_path / "v").verify(1)


def test_a_pack_that_was_rewritten_under_another_name_is_found(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    store = Store(tmp_path / "v")
    path = store.layout.pack(store.read(1)[1].packs[0])
    path.rename(store.layout.pack("0" * 32 + "-000000"))
    assert all_whole(tmp_path / "v") == [1]


def test_strangers_among_the_files_are_passed_over(tmp_path: Path) -> None:
    make(tmp_path / "v", 2)
    for name in ("3", "00000000000000000003.bak", "0" * 20, "notes"):
        (tmp_path / "v" / "versions" / name).write_text("")
    assert list(Store(tmp_path / "v").versions()) == [1, 2]


def test_versions_of_other_ranks_pieces_are_read(tmp_path: Path) -> None:
    """Several pieces of a tensor: written by hand as ranks will write them, read into live and fresh tensors."""
    from checkpoint.tensors import Piece, TensorSpec
    from checkpoint.version import Manifest, StoredTensor, VersionInfo
    from checkpoint.writer import Writer

    tensor = torch.arange(24, dtype=torch.int32).view(4, 6)
    boxes = [Piece((0, 0), (2, 6)), Piece((2, 0), (2, 2)), Piece((2, 2), (2, 4))]
    with Writer(tmp_path / "v", chunk_bytes=1000) as writer, writer.begin(None) as save:
        roots, packs = [], set()
        for box in boxes:
            (row, column), (rows, columns) = box.offset, box.shape
            data = bits(tensor[row : row + rows, column : column + columns])
            roots.append(blake3(data).digest())
            packs.add(save.add(roots[-1], memoryview(data)))
        save.seal()
        stored = StoredTensor(TensorSpec("int32", (4, 6)), tuple(boxes), tuple(roots))
        manifest = Manifest(tuple(packs), (stored,), {"a": {"x": {"$": 0}}})
        info = VersionInfo(1, None, 1, 0.0, save.new_bytes, 96)
        save.commit(dataclasses.replace(info), manifest)
    live = torch.zeros(6, 4, dtype=torch.int32).t()
    with Checkpointer(tmp_path / "v") as checkpointer:
        assert same(taken(checkpointer, 1, "a")["a"], {"x": tensor})
        checkpointer.restore(1, {"a": Box({"x": live})})
        assert torch.equal(live, tensor)
        checkpointer.save(2, {"a": {"x": live}})
        checkpointer.wait()
    assert all_whole(tmp_path / "v") == [1, 2]
