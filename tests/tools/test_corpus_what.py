"""`python -m tools.corpus what`: the documents of a step, held against what the feed hands out."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from stages.corpus import open_corpus
from stages.feed import FeedSpec, numpy_feed
from stages.packing import METHODS, Method, packed
from stages.tokenise import TrainSpec, train
from tests.corpora import random_documents, write_corpus
from tests.tools.test_corpus import run
from tests.tools.test_pack import documents, write_lines
from tests.tools.test_pack import run as pack
from tests.trainer_process import CONFIG
from tools.corpus_step import Feeding, WrongArguments, pieces
from trainer.entry import DONE, MISTAKE

LENGTHS = [11, 40, 0, 3, 28, 60, 7, 0, 0, 19, 90, 2, 33, 70, 54, 21, 0]
SEQ_LEN, BATCH, MICRO = 16, 8, 2


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers") / "corpus"
    write_corpus(folder, random_documents(LENGTHS))
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "tokenizer.json").write_bytes(train(TrainSpec(500), documents(100)))
    lines = write_lines(folder / "x.jsonl", ["[bold]\x1b[31m", *documents(100)])
    assert pack(lines, "--out", folder / "out", "--tokenizer", folder / "tokenizer.json") == DONE
    return folder / "out"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_samples_are_those_of_the_feed(numbers: Path, method: Method, ranks: int) -> None:
    feeding = Feeding(numbers, SEQ_LEN, BATCH, 5, method, MICRO)
    micros = BATCH // (MICRO * ranks)
    with closing(open_corpus(numbers)) as corpus:
        packing = packed(corpus, method, SEQ_LEN)
        for rank in range(ranks):
            spec = FeedSpec(SEQ_LEN, MICRO, 5, rank, ranks, columns=("sample_ids",), packing=method)
            batches = [b["sample_ids"] for b in itertools.islice(numpy_feed(corpus, spec), 12 * micros)]
            for step in (1, 2, 7, 12):
                found = feeding.sample_ids(packing, step, (rank, ranks))
                assert np.array_equal(found, np.concatenate(batches[(step - 1) * micros : step * micros]))


@pytest.mark.parametrize("method", METHODS)
def test_pieces_are_what_the_sample_holds(numbers: Path, method: Method) -> None:
    with closing(open_corpus(numbers)) as corpus:
        packing = packed(corpus, method, SEQ_LEN)
        for sample in range(packing.samples):
            ids = np.full(SEQ_LEN, -1, np.int64)
            corpus.gather(packing.spans(np.array([sample], np.int64)), ids)
            found = list(pieces(corpus, packing, sample))
            read = [corpus.view(p.document, p.first, p.first + p.tokens) for p in found]
            assert all(p.tokens > 0 for p in found)
            assert np.array_equal(np.concatenate(read).astype(np.int64), ids[ids >= 0])


def test_a_batch_changed_on_the_way(numbers: Path, tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(
        "".join(json.dumps({"step": n, "position": p}) + "\n" for n, p in ((1, 4), (2, 8), (3, 16)))
        + '{"step": 4, "posi'
    )
    feeding = Feeding(numbers, SEQ_LEN, BATCH, metrics=metrics)
    assert [feeding.window(step) for step in (1, 2, 3)] == [(0, 4), (4, 8), (8, 16)]
    with closing(open_corpus(numbers)) as corpus:
        packing = packed(corpus, "wrapped", SEQ_LEN)
        assert len(feeding.sample_ids(packing, 2, None)) == 4


@pytest.mark.slow
def test_a_real_run(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text(CONFIG.format(run=tmp_path / "run", corpus=corpus, steps=3))
    subprocess.run([sys.executable, "-m", "trainer", file], check=True, capture_output=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for path in (tmp_path / "run", file):
        for step in (1, 3):
            assert run("what", path, "--step", str(step)) == DONE
            said = capsys.readouterr().out
            shown = [int(line.split()[1]) for line in said.splitlines() if line.startswith("sample ")]
            assert shown == lines[step - 1]["samples"]
    assert run("what", tmp_path / "run", "--step", "4") == MISTAKE
    assert "the run ends with step 3" in capsys.readouterr().err
    assert run("what", tmp_path / "run", "--step", "1", "--seed", "3") == MISTAKE
    assert "--seed: only with a corpus" in capsys.readouterr().err
    assert run("what", tmp_path / "run", "--step", "1", "--rank", "1", "--ranks", "2") == DONE
    assert capsys.readouterr().out.count("\nsample ") == 4


def test_text_of_a_corpus(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--seq-len", "4096", "--global-batch", "1", "--packing", "bfd")
    assert run("what", corpus, "--step", "1", *settings) == DONE
    said = capsys.readouterr().out
    assert "(whole)  [bold]\\x1b[31m<|endoftext|>" in said
    assert "padding" in said
    assert "\x1b" not in said
    assert not (corpus / "packings").exists()
    shares = [float(word[:-1]) for word in said.split() if word.endswith("%")]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--step 0", "counted from 1"),
        ("--step -3", "counted from 1"),
        ("--step 4611686018427387905", "2**62"),
        ("--step 1 --rank 0", "belong together"),
        ("--step 1 --ranks 2", "belong together"),
        ("--step 1 --rank 2 --ranks 2", "no rank 2"),
        ("--step 1 --rank -1 --ranks 2", "no rank -1"),
        ("--step 1 --rank 0 --ranks 0", "--ranks must be"),
        ("--step 1 --rank 0 --ranks 2", "--micro-batch"),
        ("--step 1 --rank 0 --ranks 2 --micro-batch 3", "make up no batch"),
        ("--step 1 --rank 0 --ranks 2 --micro-batch 0", "make up no batch"),
        ("--step 1 --seed -1", "--seed"),
        ("--step 1 --tokens 0", "--tokens"),
        ("--step 1 --seq-len 1", "--seq-len"),
        ("--step 1 --seq-len 100000000", "no sample"),
        ("--step 1 --global-batch 0", "--global-batch"),
    ],
)
def test_nonsense(corpus: Path, arguments: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    usual = {"--seq-len": "16", "--global-batch": "8"}
    rest = [word for name, value in usual.items() if name not in arguments for word in (name, value)]
    assert run("what", corpus, *arguments.split(), *rest) == MISTAKE
    assert reason in capsys.readouterr().err


def test_what_is_no_run(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("what", tmp_path, "--step", "1") == MISTAKE
    assert "config.toml: no such file" in capsys.readouterr().err
    assert run("what", corpus, "--step", "1") == MISTAKE
    assert "give --seq-len and --global-batch" in capsys.readouterr().err
    with pytest.raises(WrongArguments):
        Feeding(corpus, 16, 0)
