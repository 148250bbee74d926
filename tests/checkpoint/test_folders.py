"""What else may lie in a store's folders, or be missing there: copies, strays, numbers that no run reaches."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from checkpoint import Checkpointer, Store, StoreDamaged
from checkpoint.errors import StoreFull, naming
from checkpoint.layout import MAX_VERSION
from checkpoint.writer import Writer
from tests.checkpoint.states import Box, all_whole


def make(path: Path, versions: int) -> None:
    with Checkpointer(path) as checkpointer:
        for step in range(1, versions + 1):
            checkpointer.save(step, {"a": {"x": torch.full((5,), float(step))}})


def test_a_copy_without_empty_folders_is_read_and_gone_on_with(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    for name in ("tags", "intents"):
        (tmp_path / "v" / name).rmdir()
    assert all_whole(tmp_path / "v") == [1]
    assert not (tmp_path / "v" / "tags").exists()
    make(tmp_path / "v", 1)
    assert all_whole(tmp_path / "v") == [1, 2]
    assert (tmp_path / "v" / "tags").is_dir()


@pytest.mark.parametrize("name", ["packs", "versions"])
def test_a_store_without_a_folder_that_holds_content_is_damaged(tmp_path: Path, name: str) -> None:
    make(tmp_path / "v", 1)
    (tmp_path / "v" / name).rename(tmp_path / "moved")
    for opened in (Store, Checkpointer):
        with pytest.raises(StoreDamaged, match=f"{name} is missing"):
            opened(tmp_path / "v")


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_a_version_that_is_no_file_is_passed_over(tmp_path: Path, kind: str) -> None:
    make(tmp_path / "v", 3)
    store = Store(tmp_path / "v")
    for number in (2, 3):
        path = store.layout.version(number)
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(store.layout.version(1))
        else:
            os.mkfifo(path)
    with pytest.raises(StoreDamaged, match="cannot be opened as a file") as caught:
        store.info(2)
    assert caught.value.version == 2
    assert store.last_good(3) == 1
    with Checkpointer(tmp_path / "v") as checkpointer:
        box = Box({"x": torch.zeros(5)})
        with pytest.raises(StoreDamaged, match="The last good version is 1"):
            checkpointer.restore(None, {"a": box})
        assert checkpointer.restore(None, {"a": box}, allow_older=True).info.version == 1


@pytest.mark.parametrize("number", [10**20 - 1, MAX_VERSION])
def test_no_save_is_taken_under_a_number_that_cannot_be_read(tmp_path: Path, number: int) -> None:
    make(tmp_path / "v", 1)
    path = Store(tmp_path / "v").layout.version(number)
    path.write_bytes(b"")
    with pytest.raises(StoreDamaged, match=f"{number}: no version can follow"):
        Checkpointer(tmp_path / "v")
    path.unlink()
    make(tmp_path / "v", 1)


def test_the_last_number_is_the_last(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    with Writer(tmp_path / "v") as writer:
        info, manifest = writer.store.read(1)
        writer.head = MAX_VERSION - 1
        with writer.begin(1) as save:
            assert save.commit(info, manifest).version == MAX_VERSION
        assert writer.store.verify(MAX_VERSION).version == MAX_VERSION
        with writer.begin(1) as save, pytest.raises(StoreDamaged, match="no version can follow"):
            save.commit(info, manifest)
    assert Store(tmp_path / "v").versions() == [1, MAX_VERSION]


def test_folders_with_the_names_of_leftovers_block_nobody(tmp_path: Path) -> None:
    make(tmp_path / "v", 1)
    strays = [tmp_path / "v" / name for name in ("intents/" + "0" * 32, "packs/x.tmp", "versions/x.tmp")]
    for stray in strays:
        (stray / "mine").mkdir(parents=True)
    make(tmp_path / "v", 1)
    assert all_whole(tmp_path / "v") == [1, 2]
    assert all((stray / "mine").is_dir() for stray in strays)


def test_a_full_disk_is_told_as_what_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(StoreFull) as caught, naming("writing", tmp_path, "Nothing was exported. "):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(caught.value) == (
        f"{tmp_path}: no space left while writing (No space left on device). Nothing was exported. "
        "Free some space and try again"
    )
