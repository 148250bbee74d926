from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from checkpoint import Checkpointer, Store
from tests.checkpoint.states import pack_bytes, taken
from tools.restore import main
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
    assert not list((tmp_path / "out").iterdir())
