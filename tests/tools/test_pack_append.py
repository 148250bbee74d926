"""Appending: the same documents as if all had been packed at once, and readers that notice nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tools.pack
from stages.corpus import open_corpus
from stages.tokenise import TrainSpec, train
from tests.tools.test_pack import ROOT, documents, run, write_lines
from tests.tools.test_pack_parts import ids, meta_of
from trainer.entry import DONE, MISTAKE


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "any-name.json"
    path.write_bytes(train(TrainSpec(500), documents(300)))
    return path


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Three files; the later ones repeat documents of the earlier ones. The last but one has a bad record."""
    texts = [f"{text} {number}" for number, text in enumerate(documents(300))]
    chosen = (texts[:120], [*texts[60:200], ""], texts[150:])
    return [write_lines(tmp_path / f"{number}.jsonl", some) for number, some in enumerate(chosen)]


CHOICES = [[], ["--dedup", "exact", "--val", "0.2"]]


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
@pytest.mark.parametrize("choice", CHOICES)
def test_appending_is_packing_all_at_once(
    inputs: list[Path], tokenizer: Path, tmp_path: Path, store: str, choice: list[str]
) -> None:
    usual = ("--on-bad", "quarantine", *choice)
    first = ("--tokenizer", tokenizer, "--store", store)
    assert run(*inputs, "--out", tmp_path / "whole", *first, *usual) == DONE
    out = tmp_path / "out"
    assert run(inputs[0], "--out", out, *first, *usual) == DONE
    for more in inputs[1:]:
        assert run(more, "--out", out, "--append", *usual) == DONE
        # Run again it adds nothing.
        assert run(more, "--out", out, "--append", *usual) == DONE
    for name in (".", "val") if choice else (".",):
        assert ids(out / name) == ids(tmp_path / "whole" / name)
        here, whole = meta_of(out / name), meta_of(tmp_path / "whole" / name)
        assert (here.digest, here.inputs, here.options) == (whole.digest, whole.inputs, whole.options)
        assert (here.dedup is None) == (whole.dedup is None)
        if here.dedup and whole.dedup:
            assert here.dedup.dropped == whole.dedup.dropped
            assert here.dedup.hashes.blake3 == whole.dedup.hashes.blake3
        if whole.quarantine:
            assert here.quarantine
            assert here.quarantine.file.blake3 == whole.quarantine.file.blake3
    # Nothing of the earlier generations is left.
    assert len([path for path in out.iterdir() if path.name.startswith("lengths")]) == 1


def test_readers_go_on_reading_what_was_there(inputs: list[Path], tokenizer: Path, tmp_path: Path) -> None:
    assert run(inputs[0], "--out", tmp_path / "out", "--tokenizer", tokenizer) == DONE
    before = ids(tmp_path / "out")
    with open_corpus(tmp_path / "out") as corpus:
        assert run(inputs[2], "--out", tmp_path / "out", "--append") == DONE
        assert [corpus.view(d, 0, int(corpus.lengths[d])).tolist() for d in range(len(corpus))] == before
    assert ids(tmp_path / "out")[: len(before)] == before


def test_one_process_does_not_write_a_database_that_it_reads(
    inputs: list[Path], tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(inputs[0], "--out", out, "--tokenizer", tokenizer, "--store", "lmdb") == DONE
    before = ids(out)
    with open_corpus(out):
        assert run(inputs[2], "--out", out, "--append") == MISTAKE
    assert "close that first" in capsys.readouterr().err
    assert ids(out) == before


def test_readers_in_other_processes_go_on_too(inputs: list[Path], tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(inputs[0], "--out", out, "--tokenizer", tokenizer, "--store", "lmdb") == DONE
    before = ids(out)
    code = (
        "import sys; from stages.corpus import open_corpus; corpus = open_corpus(sys.argv[1]);"
        "corpus.view(0, 0, 1); print('open', flush=True); sys.stdin.read();"
        "print([corpus.view(d, 0, int(corpus.lengths[d])).tolist() for d in range(len(corpus))])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        for more in inputs[2], inputs[0]:
            assert run(more, "--out", out, "--append") == DONE
        said, _ = reader.communicate()
    assert json.loads(said) == before


class Killed(BaseException):
    """Ends a pack as a kill does, but for what ends when a claim does."""


# A source that is left while a thread opens a file for it lets go of that file late.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("store", ["arrow", "lmdb"])
@pytest.mark.parametrize("choice", CHOICES)
def test_an_append_goes_on(
    inputs: list[Path],
    tokenizer: Path,
    tmp_path: Path,
    store: str,
    choice: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = ("--on-bad", "quarantine", *choice)
    first = ("--tokenizer", tokenizer, "--store", store)
    for name in ("out", "expected"):
        assert run(inputs[0], "--out", tmp_path / name, *first, *usual) == DONE
    assert run(inputs[1], "--out", tmp_path / "expected", "--append", *usual) == DONE
    real = tools.pack.PackSpec
    monkeypatch.setattr(tools.pack, "PackSpec", lambda **options: real(**options, save_every_s=0.0))
    real_read = tools.pack.ReadSpec
    monkeypatch.setattr(tools.pack, "ReadSpec", lambda **options: real_read(**options, group_records=20))
    before = meta_of(tmp_path / "out")
    real_pack = tools.pack.pack
    for stop_at in (1, 3):
        seen = 0

        def stopping(inputs: object, source: object, output: object, spec: object, observe: object) -> object:
            def observed(progress: object) -> None:
                nonlocal seen
                seen += 1
                if seen > stop_at:  # noqa: B023  # called within the same turn
                    raise Killed

            return real_pack(inputs, source, output, spec, observed)  # type: ignore[arg-type]  # handed on

        monkeypatch.setattr(tools.pack, "pack", stopping)
        with pytest.raises(Killed):
            run(inputs[1], "--out", tmp_path / "out", "--append", *usual)
        assert (tmp_path / "out" / "packing.json").exists()
        assert meta_of(tmp_path / "out") == before
    monkeypatch.setattr(tools.pack, "pack", real_pack)
    assert run(inputs[1], "--out", tmp_path / "out", "--append", *usual) == DONE
    for name in (".", "val") if choice else (".",):
        assert ids(tmp_path / "out" / name) == ids(tmp_path / "expected" / name)
        assert meta_of(tmp_path / "out" / name) == meta_of(tmp_path / "expected" / name)
        assert {p.name for p in (tmp_path / "out" / name).iterdir()} == {
            p.name for p in (tmp_path / "expected" / name).iterdir()
        }


def test_what_does_not_fit_is_refused_and_leaves_the_corpus(
    inputs: list[Path], tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(inputs[0], "--out", out, "--append") == MISTAKE
    assert run(inputs[0], "--out", out, "--append", "--tokenizer", tokenizer) == MISTAKE
    assert not out.exists()
    assert run(inputs[0], "--out", out, "--tokenizer", tokenizer) == DONE
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for arguments, says in (
        (["--dedup", "exact"], "dedup is None there and 'exact' here"),
        (["--eos", "none"], "eos is"),
        (["--part", "1/2"], "excludes"),
        (["--train-tokenizer", "bpe:300"], "exclude each other"),
        ([], "empty text"),
    ):
        capsys.readouterr()
        assert run(inputs[1], "--out", out, "--append", *arguments) == MISTAKE
        assert says in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
