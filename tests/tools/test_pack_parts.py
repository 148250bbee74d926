"""Packing in parts, without duplicates, with documents held out: whatever the way, one result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages.corpus import CorpusMeta, open_corpus
from stages.corpus.parts import Part
from stages.inputs import Choice, scan
from stages.tokenise import TrainSpec, train
from tests.tools.killed_pack import content
from tests.tools.test_pack import documents, run, write_lines
from trainer.entry import DONE, MISTAKE


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "any-name.json"
    path.write_bytes(train(TrainSpec(500), documents(300)))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of uneven sizes, with duplicates within and over them, bad records, and one that is empty of good ones."""
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.jsonl", "b.txt", "c.jsonl", "deep/d.jsonl", "e.jsonl", "f.jsonl")):
        texts = [f"{text} {n if n % 3 else 0}" for n, text in enumerate(documents(40 * number + 5))]
        if name.endswith(".txt"):
            (folder / name).write_text("\n".join(texts), "utf-8")
        else:
            write_lines(folder / name, [*texts, ""])
    (folder / "g.jsonl").touch()
    return folder


def ids(folder: Path) -> list[list[int]]:
    with open_corpus(folder) as corpus:
        corpus.verify()
        return [corpus.view(d, 0, int(corpus.lengths[d])).tolist() for d in range(len(corpus))]


def meta_of(folder: Path) -> CorpusMeta:
    with open_corpus(folder) as corpus:
        return corpus.meta


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
@pytest.mark.parametrize("choice", [[], ["--dedup", "exact", "--val", "0.2"]])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_parts_merged_are_the_whole(
    folder: Path, tokenizer: Path, tmp_path: Path, store: str, choice: list[str], count: int
) -> None:
    usual = (folder, "--tokenizer", tokenizer, "--on-bad", "quarantine", "--store", store, *choice)
    assert run(*usual, "--out", tmp_path / "whole") == DONE
    parts = [tmp_path / f"part-{index}" for index in range(1, count + 1)]
    for index, part in enumerate(parts, 1):
        assert run(*usual, "--out", part, "--part", f"{index}/{count}") == DONE
    assert run("merge", *reversed(parts), "--out", tmp_path / "merged") == DONE
    assert content(tmp_path / "merged") == content(tmp_path / "whole")
    ids(tmp_path / "merged")


def test_what_is_not_all_of_one_corpus_is_refused(
    folder: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = (folder, "--tokenizer", tokenizer, "--on-bad", "quarantine")
    for name, extra in (
        ("whole", []),
        ("1", ["--part", "1/2"]),
        ("2", ["--part", "2/2"]),
        ("other", ["--part", "2/2", "--eos", "none"]),
    ):
        assert run(*usual, "--out", tmp_path / name, *extra) == DONE
    for names, says in (
        (["1"], "part 2 of 2 is missing"),
        (["1", "1"], "part 1 is given twice"),
        (["1", "other"], "its tokenizer are"),
        (["1", "whole"], "is a whole corpus"),
        (["1", "nothing"], "no such folder"),
    ):
        capsys.readouterr()
        parts = [tmp_path / name for name in names]
        assert run("merge", *parts, "--out", tmp_path / "merged") == MISTAKE
        assert says in capsys.readouterr().err
        assert not (tmp_path / "merged").exists()
    assert run("merge", tmp_path / "1", tmp_path / "2", "--out", tmp_path / "whole") == MISTAKE
    assert "holds a corpus already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "says"), [("0/2", "0/2"), ("3/2", "3/2"), ("1", "expected i/n"), ("a/b", "expected i/n")]
)
def test_a_part_says_what_it_expects(part: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Part.parse(part)


def test_every_file_is_in_one_part_in_order(folder: Path, tmp_path: Path) -> None:
    inputs = scan([folder], Choice(), output=tmp_path / "out")
    for count in (1, 2, 3, 7, 100):
        divided = [Part(index, count).of_inputs(inputs).files for index in range(1, count + 1)]
        assert [file for part in divided for file in part] == list(inputs.files)


def test_duplicates_are_left_out_and_counted(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["one", "two", "one", "three", "two", "two"]
    lines = write_lines(tmp_path / "x.jsonl", texts)
    assert run(lines, "--out", tmp_path / "a", "--tokenizer", tokenizer, "--dedup", "exact") == DONE
    assert "duplicates   3 left out" in capsys.readouterr().out
    alone = write_lines(tmp_path / "y.jsonl", ["one", "two", "three"])
    assert run(alone, "--out", tmp_path / "b", "--tokenizer", tokenizer) == DONE
    assert ids(tmp_path / "a") == ids(tmp_path / "b")


def test_what_is_held_out_stays_so_when_documents_are_added(tokenizer: Path, tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(400)]
    usual = ("--tokenizer", tokenizer, "--val", "0.1")
    for name, some in (("few", texts[:200]), ("more", texts[300:] + texts[:300])):
        lines = write_lines(tmp_path / f"{name}.jsonl", some)
        assert run(lines, "--out", tmp_path / name, *usual) == DONE
    few, more = ({tuple(document) for document in ids(tmp_path / name / "val")} for name in ("few", "more"))
    assert 0 < len(few) < len(more) < 100
    assert few < more
    assert not few & {tuple(document) for document in ids(tmp_path / "more")}
    assert meta_of(tmp_path / "more").documents + meta_of(tmp_path / "more" / "val").documents == 400
    # The split belongs to what the corpus is.
    assert run(tmp_path / "more.jsonl", "--out", tmp_path / "more", "--tokenizer", tokenizer) == MISTAKE
    assert run(tmp_path / "more.jsonl", "--out", tmp_path / "more", *usual) == DONE


@pytest.mark.parametrize("limit", [1, 6, 7, 100])
def test_a_limit_takes_the_first_documents(folder: Path, tokenizer: Path, tmp_path: Path, limit: int) -> None:
    usual = (folder, "--tokenizer", tokenizer, "--on-bad", "quarantine")
    assert run(*usual, "--out", tmp_path / "whole") == DONE
    for _ in range(2):  # The second time it is there already.
        assert run(*usual, "--out", tmp_path / "some", "--limit", limit) == DONE
    assert ids(tmp_path / "some") == ids(tmp_path / "whole")[:limit]
    assert run(*usual, "--out", tmp_path / "some") == MISTAKE


def test_options_are_recorded(tokenizer: Path, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "x.jsonl", ["a<|endoftext|>b"])
    bos = ("--bos", "<|endoftext|>", "--parse-special")
    assert run(lines, "--out", tmp_path / "out", "--tokenizer", tokenizer, *bos) == DONE
    options = json.loads((tmp_path / "out" / "corpus.json").read_bytes())["options"]
    assert options["bos"] == "<|endoftext|>"
    assert options["parse_special"] is True
    assert ids(tmp_path / "out")[0].count(0) == 3
