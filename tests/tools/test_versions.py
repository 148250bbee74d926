from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoint import Checkpointer, Store
from checkpoint.errors import CheckpointError
from tools.versions import age, main
from trainer.entry import DONE, FAILED, MISTAKE, guarded


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path / "run" / "versions", 1000) as checkpointer:
        for step in (10, 20, 30):
            parts = {
                "model": {"w": torch.full((500,), float(step)), "frozen": torch.zeros(3)},
                "progress": {"x": 1},
            }
            checkpointer.save(step, parts, {"loss": 10 / step})
    return tmp_path / "run"


def pack_of_newest(run: Path) -> Path:
    store = Store(run / "versions")
    older = store.read(2)[1].packs
    return store.layout.pack(next(name for name in store.read(3)[1].packs if name not in older))


def rot(path: Path, at: int = 20) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_list(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (run, run / "versions"):
        assert main(["list", str(path)]) == DONE
        title, *lines = capsys.readouterr().out.splitlines()
        assert title.split() == ["version", "step", "age", "loss", "new", "bytes", "total", "bytes", "parent"]
        assert [line.split()[:2] for line in lines] == [["1", "10"], ["2", "20"], ["3", "30"]]
        assert lines[2].split()[4] == "0.3333"
        assert lines[2].split()[-1] == "2"


def test_list_goes_on_after_a_damaged_header(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rot(run / "versions" / "versions" / f"{2:020d}")
    assert main(["list", str(run)]) == FAILED
    lines = capsys.readouterr().out.splitlines()
    assert "damaged" in lines[2]
    assert lines[3].split()[0] == "3"


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_version_that_is_no_file_is_damage_of_that_version(
    run: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = run / "versions" / "versions" / f"{2:020d}"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.with_name(f"{1:020d}"))
    assert main(["list", str(run)]) == FAILED
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert f"damaged: {path}: it cannot be opened as a file" in lines[1]
    assert main(["verify", str(run), "--all"]) == FAILED
    whole, damaged, also_whole = capsys.readouterr().out.splitlines()
    assert whole.startswith("version 1: whole")
    assert damaged.startswith("version 2: DAMAGED: version 2 is damaged")
    assert also_whole.startswith("version 3: whole")


def test_show(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "3", str(run)]) == DONE
    out = capsys.readouterr().out
    root = Store(run / "versions").read(3)[1].tensors[0].roots[0].hex()[:16]
    line = next(line for line in out.splitlines() if line.startswith("w "))
    assert line.split() == ["w", "float32[500]", "2.0", "kB", "2", root]
    assert '"x": 1' in out
    assert "part model" in out


def test_verify(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run)]) == DONE
    assert capsys.readouterr().out.startswith("version 3: whole, step 30")
    assert main(["verify", "1", str(run)]) == DONE
    assert capsys.readouterr().out.startswith("version 1: whole")
    rot(pack_of_newest(run))
    assert main(["verify", str(run), "--all"]) == FAILED
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[:2]] == ["version 1: whole", "version 2: whole"]
    assert "DAMAGED: version 3, tensor model/w, pack" in lines[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list", "{}/nowhere"], "no such run"),
        (["list", "{}"], "no FORMAT file"),
        (["show", "9", "{}/run"], "no version 9: it has 1 to 3"),
        (["verify", "9", "{}/run"], "no version 9: it has 1 to 3"),
        (["verify", "9", "{}/run", "--all"], "at most one of"),
        (["verify", "a", "b", "c"], "at most one of"),
    ],
)
def test_mistakes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    filled = [argument.format(tmp_path) for argument in arguments]
    assert guarded(lambda: main(filled)) == MISTAKE
    assert says in capsys.readouterr().err


def test_a_store_without_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Checkpointer(tmp_path / "versions").close()
    assert guarded(lambda: main(["list", str(tmp_path)])) == MISTAKE
    assert "has no versions yet" in capsys.readouterr().err


def test_a_damaged_version_is_a_failure(run: Path) -> None:
    rot(run / "versions" / "versions" / f"{2:020d}", 200)
    assert guarded(lambda: main(["show", "2", str(run)])) == FAILED


def test_ages() -> None:
    assert [age(seconds) for seconds in (-3, 59, 60, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]


def test_every_error_has_an_exit_code() -> None:
    def tree(kind: type[CheckpointError]) -> list[type[CheckpointError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]

    assert {kind.__name__ for kind in tree(CheckpointError) if kind.exit_code == FAILED} == {
        "CheckpointError",
        "StoreFull",
        "StoreFailed",
        "StoreDamaged",
        "Fenced",
        "RankFailed",
        "RankLost",
    }
    assert all(kind.exit_code in (FAILED, MISTAKE) for kind in tree(CheckpointError))
