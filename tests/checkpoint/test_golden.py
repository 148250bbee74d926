"""The bytes of a store, pinned. A change here is a new format, or a mistake."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from checkpoint import Store, Tree
from checkpoint.capture import Pool, capture
from checkpoint.incremental import Lineage, assemble, write_changes
from checkpoint.loading import load_part
from checkpoint.version import VersionInfo
from checkpoint.writer import Writer
from tests.checkpoint.states import bits

GOLDEN = Path(__file__).parent.parent / "golden"
SAVE = "0123456789abcdef" * 2


def write(path: Path) -> None:
    """Two versions, the second without anything new."""
    tied = torch.arange(6, dtype=torch.int16).view(2, 3)
    state: dict[str, Tree] = {
        "a/b": tied,
        "tied": tied,
        "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "plain": [None, True, -1, 0.1, "é", float("nan"), {"$": 1}],
    }
    with Writer(path, chunk_bytes=8, new_name=lambda: SAVE, clock=lambda: 1700000000.5) as writer:
        captured = capture({"model": state, "progress": {"step": 7}}, Pool())
        lineage = Lineage()
        for parent in (None, 1):
            info = VersionInfo(
                version=1,
                parent=parent,
                step=7,
                time=0.0,
                new_bytes=0,
                total_bytes=14,
                blocked_s=0.25,
                written_s=0.5,
                summary={"loss": 2.5, "bad": float("inf")},
            )
            with writer.begin(parent) as save:
                share = write_changes(captured, lineage, save, 8)
                manifest, lineage = assemble(captured, lineage, [share])
                save.commit(info, manifest)


FILES = {
    "FORMAT": "store-FORMAT.json",
    f"packs/{SAVE}-000000.pack": "store-pack.hex",
    f"versions/{1:020d}": "store-version-1.hex",
    f"versions/{2:020d}": "store-version-2.hex",
}


def golden(name: str) -> bytes:
    text = (GOLDEN / name).read_text("ascii")
    return bytes.fromhex(text) if name.endswith(".hex") else text.encode()


@pytest.mark.parametrize("file", FILES)
def test_bytes_are_pinned(tmp_path: Path, file: str) -> None:
    write(tmp_path / "v")
    assert (tmp_path / "v" / file).read_bytes() == golden(FILES[file])


def test_pinned_bytes_are_read(tmp_path: Path) -> None:
    for folder in ("packs", "versions", "tags", "intents"):
        (tmp_path / folder).mkdir()
    for file, name in FILES.items():
        (tmp_path / file).write_bytes(golden(name))
    store = Store(tmp_path)
    assert [store.verify(version).parent for version in store.versions()] == [None, 1]
    _, manifest = store.read(2)
    assert manifest.leaves("model") == {"model/a~1b": 0, "model/tied": 0, "model/scalar": 1, "model/empty": 2}
    part = load_part(store, 2, "model")
    assert bits(part.tensors["a~1b"]) == struct.pack("<6h", *range(6))
    assert part.tied == {"tied": "a~1b"}


def test_a_store_has_no_other_files(tmp_path: Path) -> None:
    write(tmp_path / "v")
    files = {str(path.relative_to(tmp_path / "v")) for path in (tmp_path / "v").rglob("*") if path.is_file()}
    assert files == {*FILES, "lock"}
