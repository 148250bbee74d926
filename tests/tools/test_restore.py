from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors import safe_open

from checkpoint import Checkpointer, Store, Tree
from checkpoint.disk import Disk
from tests.checkpoint.states import pack_bytes, taken
from tools.restore import main
from trainer.config import checked, load
from trainer.entry import DONE, FAILED, MISTAKE, guarded


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path / "run" / "versions", 1000) as checkpointer:
        for step in (10, 20, 30):
            weight = torch.full((500,), float(step))
            parts = {
                "model": {"w": weight, "tied": weight},
                "optimizer": {"m": {"w": torch.zeros(3)}},
                "n": {"n": step},
            }
            checkpointer.save(step, parts)
    (tmp_path / "run" / "config.toml").write_text("")
    return tmp_path / "run"


def test_an_older_version_becomes_the_head_at_no_cost(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = pack_bytes(run / "versions")
    assert main([str(run), "--version", "1"]) == DONE
    out = capsys.readouterr().out
    assert "version 4 is now the head" in out
    assert f"go on from it: python -m trainer {run}/config.toml" in out
    assert pack_bytes(run / "versions") == before
    info = Store(run / "versions").info(4)
    assert (info.step, info.parent, info.restored_from, info.new_bytes) == (10, 1, 1, 0)
    with Checkpointer(run / "versions") as checkpointer:
        assert checkpointer.restore(None, {}).plain["n"] == {"n": 10}
        assert torch.equal(
            torch.as_tensor(taken(checkpointer, None, "model")["model"]["w"]), torch.full((500,), 10.0)
        )


def test_refused_while_a_writer_lives(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(run / "versions"):
        assert guarded(lambda: main([str(run), "--version", "1"])) == MISTAKE
    assert "is being written by process" in capsys.readouterr().err
    assert Store(run / "versions").latest() == 3


def test_a_damaged_version_is_not_made_the_head(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(run / "versions")
    pack = store.layout.pack(next(name for name in store.read(1)[1].packs if name in store.read(2)[1].packs))
    data = bytearray(pack.read_bytes())
    data[20] ^= 1
    pack.write_bytes(data)
    assert guarded(lambda: main([str(run), "--version", "1"])) == FAILED
    assert "version 1, tensor" in capsys.readouterr().err
    assert Store(run / "versions").latest() == 3


def test_no_such_version(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: main([str(run), "--version", "7"])) == MISTAKE
    assert "no version 7: it has 1 to 3" in capsys.readouterr().err
    assert guarded(lambda: main([str(run / "nowhere"), "--version", "7"])) == MISTAKE


def test_export_as_safetensors(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "new" / "out"
    arguments = [str(run), "--version", "2", "--to", str(to)]
    assert main([*arguments, "--part", "model", "--part", "optimizer"]) == DONE
    assert sorted(path.name for path in to.iterdir()) == ["model.safetensors", "optimizer.safetensors"]
    with safe_open(to / "model.safetensors", "pt") as file:
        assert list(file.keys()) == ["w"]
        assert torch.equal(file.get_tensor("w"), torch.full((500,), 20.0))
        assert file.metadata() == {"format": "pt", "tied": "w"}
    with safe_open(to / "optimizer.safetensors", "pt") as file:
        assert list(file.keys()) == ["m/w"]
    assert Store(run / "versions").latest() == 3
    assert guarded(lambda: main(arguments)) == MISTAKE


def test_export_of_a_part_that_is_not_there(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(run), "--version", "2", "--to", str(tmp_path / "out"), "--part", "ema"]
    assert guarded(lambda: main(arguments)) == MISTAKE
    assert "part ema: not in version 2, which has model, optimizer, n" in capsys.readouterr().err


def test_export_into_a_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert guarded(lambda: main([str(run), "--version", "2", "--to", str(tmp_path / "file")])) == MISTAKE


def test_export_of_what_safetensors_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"model": {"x": torch.zeros(2, dtype=torch.complex128)}})
    assert (
        guarded(lambda: main([str(tmp_path / "v"), "--version", "1", "--to", str(tmp_path / "out")]))
        == MISTAKE
    )
    assert "safetensors refused" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (["model", "nope"], "part nope: not in version 2, which has model, optimizer, n"),
        (["model", "n"], "part n of version 2 has no tensors"),
    ],
)
def test_every_part_is_checked_before_anything_is_exported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: list[str], says: str
) -> None:
    arguments = [str(run), "--version", "2", "--to", str(tmp_path / "out")]
    for part in parts:
        arguments += ["--part", part]
    assert guarded(lambda: main(arguments)) == MISTAKE
    assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_export_to_a_full_disk_fails_and_leaves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(run), "--version", "2", "--to", str(tmp_path / "out")]
    old_limits, old_action = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    # The system's own refusal of a file that would take too much.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old_limits[1]))
    try:
        code = guarded(lambda: main(arguments))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limits)
        signal.signal(signal.SIGXFSZ, old_action)
    assert code == FAILED
    said = capsys.readouterr().err
    assert f"{tmp_path}/out/model.safetensors: no space left while writing" in said
    assert "Nothing was exported. Free some space" in said
    assert "save" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_empty_folder_takes_an_export(run: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    assert main([str(run), "--version", "2", "--to", str(tmp_path / "out")]) == DONE
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "real", "run"]


def test_a_part_cannot_be_made_the_head_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: main([str(run), "--version", "1", "--part", "model"])) == MISTAKE
    assert "--part chooses what to export and needs --to" in capsys.readouterr().err
    assert Store(run / "versions").latest() == 3


# The run's config.toml


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    """A run of two versions of different configurations, copied from elsewhere."""
    run = tmp_path / "run"
    with Checkpointer(run / "versions") as checkpointer:
        for step in (1, 2):
            config = checked(
                {
                    "run": {"dir": "/elsewhere", "seed": step},
                    "data": {"corpus": "/corpus"},
                    "train": {"steps": 10, "global_batch": 8, "micro_batch": 4},
                },
                "test",
            ).plain()
            assert any(value is None for section in config.values() for value in section.values())
            parts = {"model": {"w": torch.zeros(3)}, "config": cast("Mapping[str, Tree]", config)}
            checkpointer.save(step, parts)
    (run / "config.toml").write_text("[run]\nseed = 2\n")
    return run


def test_the_configuration_goes_back_with_the_version(
    configured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(configured.parent)
    assert main(["run", "--version", "1"]) == DONE
    assert "run/config.toml is now the configuration of version 1" in capsys.readouterr().out
    assert tomllib.loads((configured / "config.toml").read_text())["run"]["dir"] == str(configured)
    found = load(configured / "config.toml").plain()
    stored = Store(configured / "versions").read(1)[1].plain("config")
    assert isinstance(stored, Mapping)
    wanted = {**stored, "run": {**cast("Mapping[str, object]", stored["run"]), "dir": str(configured)}}
    assert found == wanted
    assert found["run"]["seed"] == 1
    assert sorted(path.name for path in configured.iterdir()) == ["config.toml", "versions"]


def test_no_configuration_is_made_where_there_was_none(configured: Path) -> None:
    assert main([str(configured / "versions"), "--version", "1"]) == DONE
    assert (configured / "config.toml").read_text() == "[run]\nseed = 2\n"
    (configured / "config.toml").unlink()
    assert main([str(configured), "--version", "1"]) == DONE
    assert [path.name for path in configured.iterdir()] == ["versions"]


def test_a_configuration_that_cannot_be_written_is_a_failure(
    configured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(Disk):
        def create(self, path: Path) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tools.restore.Disk", Full)
    assert guarded(lambda: main([str(configured), "--version", "1"])) == FAILED
    said = capsys.readouterr().err
    assert f"{configured}/config.toml: no space left" in said
    assert "its configuration is not written: restore it again" in said
    assert (configured / "config.toml").read_text() == "[run]\nseed = 2\n"


def test_going_back_needs_no_torch(configured: Path) -> None:
    code = "import sys, tools.restore as r; r.main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(configured), "--version", "1"], check=True)
