"""Packs that are killed, and run again: they go on, to the same result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.tokenise import TrainSpec, train
from tests.tools.test_pack import ROOT, documents, run, write_lines
from trainer.entry import DONE

CHOICES = {
    "arrow": ["--store", "arrow"],
    "lmdb": ["--store", "lmdb"],
    "arrow and all": ["--store", "arrow", "--val", "0.2", "--dedup", "exact"],
    "lmdb and all": ["--store", "lmdb", "--val", "0.2", "--dedup", "exact"],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "any-name.json"
    path.write_bytes(train(TrainSpec(500), documents(300)))
    return path


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a kill, unlike a power cut, does not ask what has been synced."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def killed(kind: str, work: Path, *arguments: str | Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.killed_pack", kind, str(work), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, object] = json.loads(done.stdout)
    return seen


@pytest.mark.parametrize(
    ("choice", "step"),
    [
        ("arrow", 9),
        ("lmdb and all", 13),
        *(pytest.param(choice, 1, marks=pytest.mark.slow) for choice in CHOICES),
    ],
)
def test_killed_at_any_call(tmp_path: Path, memory: Path, tokenizer: Path, choice: str, step: int) -> None:
    text = write_lines(tmp_path / "text.jsonl", [*documents(24), "", *documents(10)])
    usual = (text, "--tokenizer", tokenizer, "--workers", "1", "--on-bad", "quarantine", *CHOICES[choice])
    seen = killed("calls", memory, step, *usual)
    assert seen["wrong"] == []
    kills, committed, went_on = (int(str(seen[name])) for name in ("kills", "committed", "went_on"))
    assert kills > 40 / step
    assert 0 < committed < kills
    # All but those before the first save.
    assert went_on > kills / 3


@pytest.mark.parametrize(
    ("choice", "count"),
    [
        ("arrow", 5),
        ("lmdb and all", 3),
        *(pytest.param(choice, 50, marks=pytest.mark.slow) for choice in CHOICES),
    ],
)
def test_killed_at_random_moments(
    tmp_path: Path, memory: Path, tokenizer: Path, choice: str, count: int
) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        write_lines(tmp_path / "in" / f"{name}.jsonl", documents(700))
    seen = killed(
        "moments",
        memory,
        count,
        tmp_path / "in",
        "--tokenizer",
        tokenizer,
        "--workers",
        "2",
        *CHOICES[choice],
    )
    assert seen["wrong"] == []
    assert seen["kills"] == count


@pytest.mark.parametrize(
    ("choice", "step"),
    [
        ("lmdb", 9),
        *(pytest.param(choice, 1, marks=pytest.mark.slow) for choice in CHOICES),
    ],
)
def test_an_append_killed_at_any_call(
    tmp_path: Path, memory: Path, tokenizer: Path, choice: str, step: int
) -> None:
    texts = [f"{text} {number}" for number, text in enumerate(documents(60))]
    first = write_lines(tmp_path / "first.jsonl", texts[:25])
    more = write_lines(tmp_path / "more.jsonl", [*texts[20:], ""])
    usual = ("--on-bad", "quarantine", *CHOICES[choice])
    assert run(first, "--out", memory / "base", "--tokenizer", tokenizer, *usual) == DONE
    seen = killed("calls", memory, step, "to", memory / "base", more, "--workers", "1", *usual)
    assert seen["wrong"] == []
    # At every moment there is a whole corpus, the one before or the one after.
    assert int(str(seen["kills"])) == int(str(seen["committed"])) > 30 / step
    assert int(str(seen["went_on"])) > int(str(seen["kills"])) / 3
