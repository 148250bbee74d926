"""`python -m tools.tokenizer`, as a user runs it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from stages.tokenise import TrainSpec, train
from tests.tools.test_pack import documents, write_lines
from tests.tools.test_pack import run as pack
from tools.tokenizer import main
from trainer.entry import DONE, MISTAKE, guarded


def run(*arguments: str | Path) -> int:
    return guarded(lambda: main([str(argument) for argument in arguments]))


def test_trains_what_pack_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = write_lines(tmp_path / "x.jsonl", documents(200))
    out = tmp_path / "tokenizer.json"
    assert run("train", lines, "--out", out, "--size", "400") == DONE
    assert "wrote" in capsys.readouterr().out
    assert out.read_bytes() == train(TrainSpec(400), documents(200))
    assert pack(lines, "--out", tmp_path / "corpus", "--tokenizer", out) == DONE
    capsys.readouterr()
    assert run("train", lines, "--out", out) == MISTAKE
    assert "is there already" in capsys.readouterr().err
    assert run("train", lines, "--out", tmp_path / "y.json", "--size", "3") == MISTAKE


def test_converts_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = tmp_path / "x.tiktoken"
    tokens = [*(bytes([byte]) for byte in range(256)), b"he", b"hel", b"hello"]
    ranks.write_bytes(b"".join(base64.b64encode(t) + f" {n}\n".encode() for n, t in enumerate(tokens)))
    out = tmp_path / "tokenizer.json"
    usual = ("convert", ranks, "--out", out, "--pattern", "cl100k")
    assert run(*usual, "--special", "<|endoftext|>=300") == DONE
    assert Tokenizer.from_file(str(out)).encode("hello help<|endoftext|>").ids == [
        258,
        32,
        257,
        ord("p"),
        300,
    ]
    capsys.readouterr()
    out.unlink()
    assert run(*usual, "--special", "nonsense") == MISTAKE
    assert run("convert", tmp_path / "nothing", "--out", out, "--pattern", "gpt2") == MISTAKE
    assert "cannot be read" in capsys.readouterr().err
    assert not out.exists()


def test_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(train(TrainSpec(400), documents(200)))
    assert run("show", path, "--text", "the [b]quick\x1b fox<|endoftext|>") == DONE
    said = capsys.readouterr().out
    for fact in ("BPE, 3", "<|endoftext|> = 0", "the same text", "[|b|]", "\\x1b"):
        assert fact in said
    assert "\x1b" not in said
    assert run("show", tmp_path / "nothing") == MISTAKE
