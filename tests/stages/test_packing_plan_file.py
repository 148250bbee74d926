"""A stored plan: read back as it was, replaced where it does not fit, never in the way."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stages.errors import OutputFull
from stages.packing import plan_file
from stages.packing.best_fit import Rows, best_fit
from stages.packing.plan_file import PlanKey, plan, read_plan, write_plan
from tests.contracts.packing import bounds_of

KEY = PlanKey(corpus="c" * 64, method="bfd", seq_len=8, algorithm=1)
LENGTHS = [5, 9, 2, 2, 7, 3, 3, 1, 0, 16, 4]


def made() -> Rows:
    return best_fit(np.array(LENGTHS, np.uint32), bounds_of(LENGTHS), 8)


def never() -> Rows:
    raise AssertionError("the plan was made again")


def plain(rows: Rows) -> tuple[list[int], list[int], list[int]]:
    return rows.offset.tolist(), rows.start.tolist(), rows.length.tolist()


def test_is_made_once(tmp_path: Path) -> None:
    first = plan(KEY, made, tmp_path / "plans")
    second = plan(KEY, never, tmp_path / "plans")
    assert plain(first) == plain(second) == plain(made())
    assert [entry.name for entry in (tmp_path / "plans").iterdir()] == ["bfd-8.arrow"]


def test_equal_plans_have_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_plan(tmp_path / name, KEY, made())
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_opens_as_arrow_with_a_row_a_sample(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.arrow", KEY, made())
    with pa.memory_map(str(tmp_path / "plan.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table["start"].to_pylist()[:2] == [[18, 31], [0, 25]]
    assert table["length"].to_pylist()[:2] == [[7, 1], [5, 3]]


@pytest.mark.parametrize(
    "other",
    [
        PlanKey("d" * 64, "bfd", 8, 1),
        PlanKey("c" * 64, "bfd", 8, 2),
        PlanKey("c" * 64, "bfd_split", 8, 1),
        PlanKey("c" * 64, "bfd", 9, 1),
    ],
)
def test_another_key_is_another_plan(other: PlanKey, tmp_path: Path) -> None:
    plan(KEY, made, tmp_path)
    path = tmp_path / other.file_name
    if not path.exists():
        path.write_bytes((tmp_path / KEY.file_name).read_bytes())
    assert read_plan(path, other) is None
    plan(other, made, tmp_path)
    assert read_plan(path, other) is not None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "folder"])
def test_a_damaged_plan_is_replaced(damage: str, tmp_path: Path) -> None:
    plan(KEY, made, tmp_path)
    path = tmp_path / KEY.file_name
    whole = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "flipped":
        # The start of the first piece; the file is sound Arrow all the same.
        at = whole.index(np.array([18, 31], "<i8").tobytes())
        path.write_bytes(whole[:at] + b"\x13" + whole[at + 1 :])
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"")
    assert plain(plan(KEY, made, tmp_path)) == plain(made())
    if damage != "folder":
        assert path.read_bytes() == whole


@pytest.mark.parametrize("folder", ["missing/plans", "file/plans"])
def test_without_a_place_the_plan_is_made_each_time(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        assert plain(plan(KEY, made, tmp_path / folder)) == plain(made())
    assert not (tmp_path / "missing").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputFull):
        write_plan(tmp_path / KEY.file_name, KEY, made())
    assert plain(plan(KEY, made, tmp_path)) == plain(made())
    assert list(tmp_path.iterdir()) == []


def test_a_killed_maker_is_in_nobodys_way(tmp_path: Path) -> None:
    """It held the folder and had begun the file."""
    script = (
        "import os, signal, sys, pathlib\n"
        "from stages.packing import plan_file\n"
        "from tests.stages.test_packing_plan_file import KEY, made\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)\n"
        "plan_file.plan(KEY, made, pathlib.Path(sys.argv[1]))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert [entry.name for entry in tmp_path.iterdir()] == ["bfd-8.arrow.draft"]
    assert plain(plan(KEY, made, tmp_path)) == plain(made())
    assert [entry.name for entry in tmp_path.iterdir()] == ["bfd-8.arrow"]


def test_whoever_waited_takes_what_was_made(tmp_path: Path) -> None:
    """Another process makes the plan while this one waits for the folder."""

    def meanwhile() -> Rows:
        raise AssertionError("made twice")

    real = plan_file.read_plan
    asked = []

    def read(path: Path, key: PlanKey) -> Rows | None:
        asked.append(path)
        if len(asked) == 1:
            write_plan(path, key, made())
            return None
        return real(path, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_file, "read_plan", read)
        assert plain(plan(KEY, meanwhile, tmp_path)) == plain(made())
