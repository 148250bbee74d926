"""`python -m tools.corpus`, as a user runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.packing import METHODS
from stages.tokenise import TrainSpec, train
from tests.tools.test_pack import documents, write_lines
from tests.tools.test_pack import run as pack
from tools.corpus import histogram, main, printable, spread
from trainer.entry import DONE, MISTAKE, guarded


def run(*arguments: str | Path) -> int:
    return guarded(lambda: main([str(argument) for argument in arguments]))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "tokenizer.json").write_bytes(train(TrainSpec(500), documents(300)))
    lines = write_lines(
        folder / "x.jsonl", ["first [bold]text[/bold] \x1b[31m", *documents(200), "the last one"]
    )
    usual = ("--tokenizer", folder / "tokenizer.json", "--dedup", "exact")
    assert pack(lines, "--out", folder / "out", *usual) == DONE
    return folder / "out"


def test_shows_what_it_is_and_some_text(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", corpus) == DONE
    said = capsys.readouterr().out
    for fact in (
        "arrow, uint16",
        "eos <|endoftext|> = 0",
        "x.jsonl",
        "left out",
        "dedup exact",
        "document 0",
    ):
        assert fact in said
    assert "first [bold]text[/bold] \\x1b[31m<|endoftext|>" in said
    assert "\x1b" not in said
    assert "the last one<|endoftext|>" in said


def test_shows_the_documents_that_are_named(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", corpus, "--documents", "3", "5", "--tokens", "2", "--ids") == DONE
    said = capsys.readouterr().out
    assert "document 3" in said
    assert "document 5" in said
    assert "more tokens" in said
    assert run("show", corpus, "--documents", "1000000") == MISTAKE
    assert "no document 1000000" in capsys.readouterr().err
    assert run("show", corpus, "--tokens", "0") == MISTAKE


def test_stats_add_up(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("stats", corpus, "--seq-len", "16", "100") == DONE
    said = capsys.readouterr().out
    assert "length       mean" in said
    assert "█" in said
    total = next(line.split()[1] for line in said.splitlines() if line.startswith("tokens "))
    for method in METHODS:
        row = next(line.split() for line in said.splitlines() if line.split()[:2] == ["16", method])
        samples, kept, dropped, padded = (int(word.replace(",", "")) for word in row[2:6])
        assert kept + dropped == int(total.replace(",", ""))
        assert kept + padded == 16 * samples
    assert run("stats", corpus, "--seq-len", "1") == MISTAKE
    assert "--seq-len" in capsys.readouterr().err


def test_exports(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", corpus, "--megatron", tmp_path / "text") == DONE
    assert "text.idx" in capsys.readouterr().out
    assert (tmp_path / "text.bin").exists()
    assert run("export", corpus, "--megatron", tmp_path / "text") == MISTAKE


def test_what_is_no_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("stats", tmp_path) == MISTAKE
    assert "no corpus" in capsys.readouterr().err


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_the_histogram_counts_each_document_once(lengths: list[int]) -> None:
    rows = histogram(np.array(lengths, dtype=np.uint32))
    assert sum(count for _, _, count in rows) == len(lengths)
    for low, high, count in rows:
        assert count == sum(low <= length <= high for length in lengths)


@given(st.integers(0, 100))
def test_documents_spread_over_the_corpus(count: int) -> None:
    found = spread(count)
    assert len(found) == min(3, count) == len(set(found))
    assert all(0 <= at < count for at in found)


def test_control_characters_are_shown() -> None:
    assert printable("a\x1b[0m\n\tü\u202e") == "a\\x1b[0m\n\tü\\u202e"
