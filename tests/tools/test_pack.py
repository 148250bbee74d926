"""`python -m tools.pack`, as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.corpus import claimed, open_corpus
from stages.corpus.meta import read_meta
from stages.tokenise import TrainSpec, train
from tools.pack import main
from trainer.entry import DONE, FAILED, MISTAKE, guarded

ROOT = Path(__file__).parents[2]
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "ünïcode",
    "漢字",
    "and",
    "😀",
    "pass",
    "by",
]


def run(*arguments: str | Path) -> int:
    return guarded(lambda: main([str(argument) for argument in arguments]))


def command(*arguments: str | Path, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """A process of its own, with the statements `before` run first in it."""
    code = f"import runpy; {before}; runpy.run_module('tools.pack', run_name='__main__', alter_sys=True)"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def documents(count: int) -> list[str]:
    return [" ".join(WORDS[(n * k) % len(WORDS)] for k in range(n % 40 + 1)) for n in range(count)]


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "any-name.json"
    path.write_bytes(train(TrainSpec(500), documents(300)))
    return path


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "lines.jsonl", documents(500))


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_packs_and_says_what(
    lines: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "corpus"
    assert run(lines, "--out", out, "--tokenizer", tokenizer) == DONE
    with open_corpus(out) as corpus:
        corpus.verify()
        meta = corpus.meta
        serial = Tokenizer.from_file(str(tokenizer))
        for number, text in enumerate(documents(500)):
            ids = corpus.view(number, 0, int(corpus.lengths[number])).tolist()
            assert ids == [*serial.encode(text, add_special_tokens=False).ids, 0]
    assert (out / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    said = capsys.readouterr().out
    for fact in (
        "documents    500",
        f"tokens       {meta.tokens:,}",
        "eos <|endoftext|> = 0",
        meta.digest,
        "tokens/s",
    ):
        assert fact in said
    assert str(tmp_path) not in (out / "corpus.json").read_text("utf-8")


texts_of_any_kind = st.lists(st.text(max_size=30), min_size=1, max_size=15)


@settings(max_examples=25, deadline=None)
@given(texts=texts_of_any_kind, escaped=st.booleans())
def test_any_texts_are_stored_as_the_tokenizer_says(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Path, texts: list[str], escaped: bool
) -> None:
    folder = tmp_path_factory.mktemp("any")
    # Escapes can say half a surrogate pair, which is no text; so is an empty one.
    lone = ["\ud800", "a\udfff"] if escaped else []
    lines = [
        json.dumps({"text": t}, ensure_ascii=escaped or not _is_utf8(t)) for t in [*texts, "last", *lone]
    ]
    (folder / "x.jsonl").write_text("\n".join(lines), "utf-8", newline="")
    assert (
        run(folder / "x.jsonl", "--out", folder / "out", "--tokenizer", tokenizer, "--on-bad", "quarantine")
        == DONE
    )
    good = [text for text in [*texts, "last"] if text and _is_utf8(text)]
    serial = Tokenizer.from_file(str(tokenizer))
    with open_corpus(folder / "out") as corpus:
        found = [corpus.view(d, 0, int(corpus.lengths[d])).tolist() for d in range(len(corpus))]
        assert found == [[*serial.encode(text, add_special_tokens=False).ids, 0] for text in good]
        kept = corpus.meta.quarantine
        assert (kept.records if kept else 0) == len(lines) - len(good)


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl", documents(3000))
    (tmp_path / "in" / "b.txt").write_text("\n".join(documents(200)), "utf-8")
    made = []
    for workers in ("1", "2", "4"):
        out = tmp_path / workers
        done = command(tmp_path / "in", "--out", out, "--train-tokenizer", "bpe:600", "--workers", workers)
        assert done.returncode == DONE, done.stderr
        made.append(file_bytes(out))
    assert made[0] == made[1] == made[2]
    assert sorted(made[0]) == [
        "bounds.arrow",
        "corpus.json",
        "lengths.arrow",
        "tokenizer.json",
        "tokens-00000.arrow",
    ]


def test_the_same_command_again_says_so_and_changes_nothing(
    lines: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "corpus"
    for number, choice in enumerate((["--tokenizer", tokenizer], ["--train-tokenizer", "bpe:400"])):
        arguments = (lines, "--out", out / str(number), *choice)
        assert run(*arguments) == DONE
        before = {path: path.stat().st_mtime_ns for path in (out / str(number)).iterdir()}
        assert run(*arguments, "--workers", "1", "--on-bad", "quarantine") == DONE
        assert "holds this corpus already" in capsys.readouterr().out
        assert {path: path.stat().st_mtime_ns for path in (out / str(number)).iterdir()} == before


def test_another_corpus_is_refused(
    lines: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "corpus"
    usual = ("--out", out, "--tokenizer", tokenizer)
    assert run(lines, *usual) == DONE
    before = file_bytes(out)
    other = tmp_path / "other.json"
    other.write_bytes(train(TrainSpec(300), documents(300)))
    text = lines.read_text("utf-8")
    for change, says in (
        (lambda: run(lines, *usual, "--eos", "none"), "eos is '<|endoftext|>' there and none here"),
        (lambda: run(lines, *usual, "--field", "body"), "field is 'text' there and 'body' here"),
        (lambda: run(lines, "--out", out, "--tokenizer", other), "the tokenizer is"),
        (lambda: run(lines, "--out", out, "--train-tokenizer", "bpe:400"), "train_tokenizer is None there"),
        (lambda: run(lines, lines, *usual), "was made from lines.jsonl, not from lines.jsonl, lines.jsonl"),
        (
            lambda: lines.write_text(text.replace("fox", "cat"), "utf-8") and run(lines, *usual),
            "another content",
        ),
    ):
        assert change() == MISTAKE
        said = capsys.readouterr().err
        assert "holds another corpus" in said
        assert says in said
    assert file_bytes(out) == before


def test_quarantine_keeps_records_aside(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "good"}\n{"text": ""}\n\xff\n{"text": "good too"}\n{"body": 1}\n')
    out = tmp_path / "out"
    usual = (path, "--out", out, "--tokenizer", tokenizer)
    assert run(*usual, "--on-bad", "quarantine") == DONE
    assert (
        "3 (1 empty_text, 1 invalid_utf8, 1 missing_field), kept in quarantine.jsonl"
        in capsys.readouterr().out
    )
    kept = [json.loads(line) for line in (out / "quarantine.jsonl").read_text("utf-8").splitlines()]
    assert [(record["file"], record["row"], record["reason"]) for record in kept] == [
        ("x.jsonl", 2, "empty_text"),
        ("x.jsonl", 3, "invalid_utf8"),
        ("x.jsonl", 5, "missing_field"),
    ]
    assert kept[0]["record"] == '{"text": ""}'
    assert kept[1]["record_base64"] == "/w=="
    assert (out / "quarantine.jsonl").stat().st_mode & 0o777 == 0o600
    assert run(*usual) == MISTAKE  # Under `fail` it would be another corpus: none.
    assert "3 records quarantined" in capsys.readouterr().err


def bad_inputs(folder: Path, tokenizer: Path) -> Iterator[tuple[list[str | Path], int, str]]:
    good = write_lines(folder / "good.jsonl", documents(10))
    broken = folder / "broken.jsonl"
    broken.write_bytes(good.read_bytes() + b'{"text": "x"\n')
    (folder / "empty").mkdir()
    (folder / "nothing.jsonl").touch()
    usual: list[str | Path] = ["--out", folder / "out", "--tokenizer", tokenizer]
    yield [folder / "missing.jsonl", *usual], MISTAKE, "missing.jsonl: no such file or folder"
    yield [folder / "empty", *usual], MISTAKE, "empty: holds no text"
    yield [broken, *usual], MISTAKE, "broken.jsonl:11: broken json: Expecting ',' delimiter at column 13"
    yield (
        [broken, "--out", folder / "out", "--train-tokenizer", "bpe:300"],
        MISTAKE,
        "broken.jsonl:11: broken json",
    )
    yield [folder / "nothing.jsonl", *usual], MISTAKE, "nothing.jsonl: no document"
    yield (
        [good, "--out", folder / "out", "--tokenizer", broken],
        MISTAKE,
        "broken.jsonl: is no tokenizer.json",
    )
    yield [good, *usual, "--eos", "<end>"], MISTAKE, "no token '<end>'"
    yield [good, "--out", folder / "out"], MISTAKE, "no tokenizer: give --tokenizer FILE"
    yield [good, *usual, "--train-tokenizer", "bpe:300"], MISTAKE, "exclude each other"
    yield [good, "--out", folder / "out", "--train-tokenizer", "bpe:12"], MISTAKE, "expected bpe:SIZE"
    yield (
        [good, "--out", good / "out", "--tokenizer", tokenizer],
        MISTAKE,
        "out: cannot be written: Not a directory",
    )
    (folder / "loop").symlink_to("loop")
    yield (
        [good, "--out", folder / "loop", "--tokenizer", tokenizer],
        MISTAKE,
        "loop: cannot be written",
    )
    yield [good, *usual, "--field", os.fsdecode(b"\xff")], MISTAKE, "expected UTF-8"
    yield [good, *usual, "--exclude", os.fsdecode(b"\xff*")], MISTAKE, "expected UTF-8"
    yield [good, *usual, "--workers", "-1"], MISTAKE, "--workers"
    yield [good, *usual, "--max-record-bytes", "0"], MISTAKE, "--max-record-bytes"
    yield [good, *usual, "--limit", "0"], MISTAKE, "--limit"
    yield [good, *usual, "--val", "1"], MISTAKE, "--val"
    yield [good, *usual, "--bos", "<begin>"], MISTAKE, "no token '<begin>'"
    yield [good, *usual, "--part", "3/2"], MISTAKE, "--part: a part is one of 1/2 to 2/2"
    yield [good, *usual, "--part", "1/2", "--limit", "2"], MISTAKE, "exclude each other"
    yield (
        [good, "--out", folder / "out", "--train-tokenizer", "bpe:300", "--part", "1/2"],
        MISTAKE,
        "exclude each other",
    )


def test_mistakes_are_explained_and_leave_nothing(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code, says in bad_inputs(tmp_path, tokenizer):
        assert run(*arguments) == code
        said = capsys.readouterr().err
        assert says in said
        assert said.startswith("error: ")
        assert "Traceback" not in said
        assert not (tmp_path / "out").exists()


def test_a_folder_whose_name_is_no_utf8(lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"out\xff")
    done = command(lines, "--out", out, "--tokenizer", tokenizer)
    assert done.returncode == DONE, done.stderr
    assert "out\\udcff" in done.stdout
    with open_corpus(out) as corpus:
        corpus.verify()


def test_works_where_stderr_is_closed(lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    done = command(
        lines, "--out", tmp_path / "out", "--tokenizer", tokenizer, before="import sys; sys.stderr = None"
    )
    assert done.returncode == DONE
    assert "packed lines.jsonl" in done.stdout


def test_an_unknown_option_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        run("x.jsonl", "--outt", "y")
    assert error.value.code == MISTAKE
    assert "outt" in capsys.readouterr().err


def test_a_folder_in_use_is_refused(
    lines: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with claimed(tmp_path / "out"):
        assert run(lines, "--out", tmp_path / "out", "--tokenizer", tokenizer) == MISTAKE
    assert "in use" in capsys.readouterr().err


def test_a_folder_with_other_files_is_refused(
    lines: Path, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(lines, "--out", tmp_path, "--tokenizer", tokenizer) == MISTAKE
    assert "lines.jsonl" in capsys.readouterr().err


def test_a_file_size_limit_ends_it_cleanly(tmp_path: Path, tokenizer: Path) -> None:
    lines = write_lines(tmp_path / "lines.jsonl", documents(4000))

    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    done = command(lines, "--out", tmp_path / "out", "--tokenizer", tokenizer, before=limit)
    assert done.returncode == FAILED
    assert "tokens-00000.arrow: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_no_space_left_ends_it_cleanly(
    small_disk: Path, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = write_lines(tmp_path / "lines.jsonl", documents(4000))
    assert run(lines, "--out", small_disk / "out", "--tokenizer", tokenizer) == FAILED
    assert "No space left on device" in capsys.readouterr().err
    assert list(small_disk.iterdir()) == []


def test_shows_a_bar_on_a_terminal(lines: Path, tokenizer: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tools.pack",
            str(lines),
            "--out",
            str(tmp_path / "out"),
            "--tokenizer",
            str(tokenizer),
        ],
        stdout=subprocess.PIPE,
        stderr=slave,
        cwd=ROOT,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                shown += (piece := os.read(master, 4096))
            except OSError:  # The other end is closed: Linux says EIO.
                break
            if not piece:
                break
        process.communicate()
    os.close(master)
    assert process.returncode == DONE
    assert b"tokens/s" in shown
    assert b"100%" in shown
    assert b"left" in shown


def test_large_lines_take_bounded_memory(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        for _ in range(3):
            file.write(b'{"text": "' + b"x" * 100_000_000 + b'"}\n')
        file.write(b'{"text": "small"}\n')
    # VmHWM begins anew with the program; ru_maxrss would begin with what the forking test process holds.
    code = (
        "import pathlib, re, sys; from tools.pack import main; code = main(sys.argv[1:]);"
        "status = pathlib.Path('/proc/self/status').read_text();"
        "print(re.search(r'VmHWM:\\s+(\\d+)', status)[1]); raise SystemExit(code)"
    )
    arguments = (path, "--out", tmp_path / "out", "--tokenizer", tokenizer, "--on-bad", "quarantine")
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == DONE, done.stderr
    assert (
        int(done.stdout.splitlines()[-1]) < 400_000
    )  # KiB; the interpreter and its libraries take 100 MB of it
    meta = read_meta(tmp_path / "out")
    assert meta.documents == 1
    assert meta.quarantine is not None
    assert meta.quarantine.reasons == {"too_long": 3}
