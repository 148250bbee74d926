"""The output folder: who may write there, what may lie there, what is left when it goes wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stages.corpus import claimed, open_corpus
from stages.errors import OutputBusy, OutputError, OutputFull, OutputTaken
from stages.storage import DurableFile, locked, publish
from tests.contracts.corpus import write_corpus


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_claimed_by_one_at_a_time(tmp_path: Path) -> None:
    with claimed(tmp_path / "out"):
        with pytest.raises(OutputBusy, match="in use") as error, claimed(tmp_path / "out"):
            pass
        assert error.value.exit_code == 2
    with claimed(tmp_path / "out"):
        pass


def test_what_is_not_committed_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with claimed(out) as output:
        output.begin()
        (out / "tokens-00000.arrow").touch()
        (out / "quarantine.jsonl").touch()
    assert not out.exists()


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    with claimed(tmp_path) as output:
        output.begin()
    assert names(tmp_path) == []


def test_a_killed_writers_leftovers_are_replaced(tmp_path: Path) -> None:
    leftovers = (
        "packing.json",
        "tokens-00000.arrow",
        "tokens-123456.arrow",
        "lengths.spool",
        "corpus.json.draft",
    )
    for name in leftovers:
        (tmp_path / name).write_text("left", "utf-8")
    with claimed(tmp_path) as output:
        assert output.existing is None
        output.begin()
        assert names(tmp_path) == ["packing.json"]
    write_corpus(tmp_path)
    open_corpus(tmp_path).verify()
    assert "packing.json" not in names(tmp_path)


@pytest.mark.parametrize(
    "found",
    [
        ["notes.txt"],
        ["tokens-00000.arrow"],  # Looks like ours, but no pack has begun here.
        ["packing.json", "notes.txt"],
        ["packing.json", "tokens-1.arrow"],
    ],
)
def test_foreign_files_are_refused_and_untouched(tmp_path: Path, found: list[str]) -> None:
    for name in found:
        (tmp_path / name).write_text("mine", "utf-8")
    with pytest.raises(OutputTaken, match=found[-1]) as error, claimed(tmp_path):
        pass
    assert error.value.exit_code == 2
    assert names(tmp_path) == sorted(found)
    assert all((tmp_path / name).read_text("utf-8") == "mine" for name in found)


def test_a_finished_corpus_is_shown_and_untouched(tmp_path: Path) -> None:
    meta = write_corpus(tmp_path)
    before = names(tmp_path)
    with claimed(tmp_path) as output:
        assert output.existing == meta
    assert names(tmp_path) == before


def test_a_writer_killed_right_after_the_commit_has_committed(tmp_path: Path) -> None:
    meta = write_corpus(tmp_path)
    (tmp_path / "packing.json").touch()
    with claimed(tmp_path) as output:
        assert output.existing == meta
    assert "packing.json" not in names(tmp_path)


@pytest.mark.parametrize("place", ["/proc/out", "/sys/out"])
def test_an_unwritable_folder_is_named(place: str) -> None:
    if not Path(place).parent.is_dir():
        pytest.skip(f"{place} is not here")
    with pytest.raises(OutputError, match=f"{place}: cannot be written") as error, claimed(Path(place)):
        pass
    assert error.value.exit_code == 2


def test_a_folder_below_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(OutputError, match=r"file.*: cannot be written"), claimed(out):
            pass


def test_a_full_disk_is_no_mistake_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with DurableFile(tmp_path / "file") as file:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OutputFull, match=r"file: No space left") as error:
            file.write(b"x")
        monkeypatch.undo()
    assert error.value.exit_code == 1


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:3])))
    with DurableFile(tmp_path / "file") as file:
        file.write(b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
    assert file.size == 10


def test_publishing_replaces_a_draft_and_is_whole(tmp_path: Path) -> None:
    (tmp_path / "x.draft").write_bytes(b"half")
    publish(tmp_path / "x", b"whole")
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"whole"


def test_a_folder_that_was_removed_meanwhile_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, the holder before may have removed the folder: its lock would guard nothing."""
    folder = tmp_path / "out"
    folder.mkdir()
    real = os.open

    def removed_meanwhile(path: Path, flags: int) -> int:
        fd = real(path, flags)
        folder.rmdir()
        return fd

    monkeypatch.setattr(os, "open", removed_meanwhile)
    with pytest.raises(OutputBusy), locked(folder):
        pass
