"""Reading inputs: every cut of the bytes gives the same records, every state the same rest."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import Item, State
from stages.errors import InputError
from stages.inputs import Bad, Choice, Group, ReadSpec, TextSource, scan
from stages.inputs.fingerprint import fingerprints, hashed
from stages.inputs.lines import Lines
from stages.inputs.source import SMALL_BYTES
from tests.contracts.engine import SourceContract


def read(source: TextSource, at: State | None = None) -> list[Item[Group]]:
    async def collect() -> list[Item[Group]]:
        return [item async for item in source.read(at)]

    return asyncio.run(collect())


def source_of(paths: Sequence[Path], **spec: int | str) -> TextSource:
    return TextSource(scan(paths), ReadSpec(**spec))  # type: ignore[arg-type]  # the keys are ReadSpec's


def texts(items: Sequence[Item[Group]]) -> list[str]:
    return [text for item in items for text in item.value.texts]


def bad(items: Sequence[Item[Group]]) -> list[Bad]:
    return [record for item in items for record in item.value.bad]


def write_lines(path: Path, *records: object) -> Path:
    """JSON lines; bytes are written as they are."""
    lines = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


@given(lines=st.lists(st.binary(max_size=9).filter(lambda b: b"\n" not in b), max_size=12), data=st.data())
def test_lines_do_not_depend_on_where_the_bytes_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"\n".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    cutter = Lines(limit=5)
    found = [
        line
        for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)
        for line in cutter.feed(whole[start:stop])
    ]
    found += cutter.finish()
    expected = lines[:-1] if not lines or lines[-1] == b"" else lines
    assert [line.size for line in found] == [len(line) for line in expected]
    assert [line.data for line in found] == [line if len(line) <= 5 else line[:5] for line in expected]
    assert [whole[: line.stop].count(b"\n") for line in found[:-1]] == list(range(1, len(found)))
    assert not found or found[-1].stop == len(whole)


def test_a_long_line_is_counted_and_not_held() -> None:
    cutter = Lines(limit=1 << 20)
    for _ in range(100):
        assert list(cutter.feed(b"x" * (1 << 19))) == []
    assert cutter.held_bytes <= (1 << 20) + (1 << 19)
    (line,) = cutter.feed(b"\n")
    assert line.size == 100 << 19
    assert len(line.data) == 64 << 10


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder with everything: JSON lines, compressed in two frames, plain text, an empty file, bad records."""
    folder = tmp_path / "mixed"
    (folder / "b").mkdir(parents=True)
    write_lines(
        folder / "a.jsonl", {"text": "a1"}, b"", {"text": ""}, {"text": "a4", "more": 1}, b"{", {"text": "ä6"}
    )
    compress = zstandard.ZstdCompressor().compress
    data = b"".join(json.dumps({"text": f"z{n} " * 50}).encode() + b"\n" for n in range(40))
    (folder / "b" / "z.jsonl.zst").write_bytes(compress(data[:1000]) + compress(data[1000:]))
    (folder / "c.txt").write_text("plain\r\ntext\n", "utf-8", newline="")
    (folder / "d.md").touch()
    (folder / "e.txt").write_bytes(b"\xff\xfe")
    return folder


def test_reads_everything_in_order(mixed: Path) -> None:
    items = read(source_of([mixed]))
    assert texts(items) == ["a1", "a4", "ä6", *(f"z{n} " * 50 for n in range(40)), "plain\r\ntext\n"]
    assert [(b.provenance, b.reason) for b in bad(items)] == [
        ("mixed/a.jsonl:3", "empty_text"),
        ("mixed/a.jsonl:5", "broken_json"),
        ("mixed/d.md:1", "empty_text"),
        ("mixed/e.txt:1", "invalid_utf8"),
    ]
    files = sorted(path for path in mixed.rglob("*") if path.is_file())
    finished = [digest for item in items for digest in item.value.finished]
    assert [digest.index for digest in finished] == list(range(len(files)))
    assert sum(item.value.read_bytes for item in items) == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("group_records", [1, 2, 3, 7])
def test_resumes_at_every_cut(mixed: Path, group_records: int) -> None:
    source = source_of([mixed], group_records=group_records)
    items = read(source)
    assert len(items) > 5
    for cut, item in enumerate(items, 1):
        rest = read(source, item.resume)
        assert [(g.value.texts, g.value.bad, g.value.finished, g.resume) for g in rest] == [
            (g.value.texts, g.value.bad, g.value.finished, g.resume) for g in items[cut:]
        ]


@settings(max_examples=20, deadline=None)
@given(group_bytes=st.integers(1, 5000), group_records=st.integers(1, 60))
def test_records_do_not_depend_on_the_groups(
    tmp_path_factory: pytest.TempPathFactory, group_bytes: int, group_records: int
) -> None:
    path = write_lines(tmp_path_factory.mktemp("lines") / "x.jsonl", *({"text": "t" * n} for n in range(60)))
    items = read(source_of([path], group_bytes=group_bytes, group_records=group_records))
    assert texts(items) == ["t" * n for n in range(1, 60)]
    assert all(len(item.value.texts) + len(item.value.bad) <= group_records for item in items)


def test_a_state_of_another_kind_is_refused(mixed: Path) -> None:
    with pytest.raises(ValueError, match="file, row and offset"):
        read(source_of([mixed]), {"position": 3})


class TestTextSource(SourceContract):
    @pytest.fixture(autouse=True)
    def _folder(self, mixed: Path) -> None:
        self._mixed = mixed

    def make_source(self) -> TextSource:
        return source_of([self._mixed], group_records=3)


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b'{"text": "x"', "broken_json", "column 13"),
        (b'{"text": "\xff"}', "invalid_utf8", "found ff at byte 10"),
        (b'{"text": "\\ud800"}', "invalid_utf8", "surrogate"),
        (b'{"body": "x", "id": 3}', "missing_field", "it has 'body', 'id'"),
        (b"{}", "missing_field", "no fields"),
        (b'{"text": 3}', "wrong_type", "found a number"),
        (b'{"text": null}', "wrong_type", "found null"),
        (b'["text"]', "wrong_type", "found a list"),
        (b'{"text": ""}', "empty_text", "is empty"),
        (b"[" * 100_000, "broken_json", "recursion"),
        (b'{"text": ' + b"9" * 5000 + b"}", "broken_json", "4300"),
        (b'{"text": "' + b"x" * 20_000 + b'"}', "too_long", "20012 bytes, the limit is 10000"),
    ],
)
def test_bad_lines_say_why(tmp_path: Path, line: bytes, reason: str, detail: str) -> None:
    limit = 10_000 if reason == "too_long" else 1 << 20
    path = write_lines(tmp_path / "x.jsonl", {"text": "before"}, line, {"text": "after"})
    items = read(source_of([path], record_bytes=limit))
    assert texts(items) == ["before", "after"]
    (record,) = bad(items)
    assert (record.reason, record.row, record.file) == (reason, 2, "x.jsonl")
    assert detail in record.detail
    assert line.startswith(record.record)
    assert record.size == len(line)


def test_half_a_pair_is_bad_and_a_whole_pair_is_a_letter(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", b'{"text": "\\ud83d\\ude00 \\u0000"}')
    assert texts(read(source_of([path]))) == ["\U0001f600 \0"]


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_truncated_zstd_keeps_what_was_whole(tmp_path: Path, kept: float) -> None:
    lines = [{"text": os.urandom(200).hex()} for _ in range(2000)]
    data = zstandard.ZstdCompressor().compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(data[: int(len(data) * kept)])
    items = read(source_of([path]))
    got = texts(items)
    assert got == [line["text"] for line in lines[: len(got)]]
    (record,) = bad(items)
    assert record.reason == "truncated_zstd"
    assert record.row == len(got) + 1


def test_what_stands_before_damage_in_zstd_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(zstandard.compress(b'{"text": "before"}\n') + b"\0" * 50)
    items = read(source_of([path]))
    assert texts(items) == ["before"]
    assert [(record.row, record.reason) for record in bad(items)] == [(2, "broken_zstd")]


def test_a_long_line_that_begins_blank_is_bad_and_not_blank(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", b" " * 100_000 + b'{"text": "x"}', {"text": "after"})
    items = read(source_of([path], record_bytes=80_000))
    assert texts(items) == ["after"]
    assert [(record.row, record.reason) for record in bad(items)] == [(1, "too_long")]


def test_what_is_no_zstd_is_bad_and_the_next_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(b"no zstd" * 1000)
    write_lines(tmp_path / "b.jsonl", {"text": "b"})
    items = read(source_of([tmp_path]))
    assert texts(items) == ["b"]
    assert [record.reason for record in bad(items)] == ["broken_zstd"]
    # Its bytes are known all the same.
    assert items[-1].value.finished[0].blake3 == blake3(b"no zstd" * 1000).hexdigest()


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\n')
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfb")
    assert texts(read(source_of([tmp_path]))) == ["a", "b"]


def test_a_large_text_file_is_refused_and_not_held(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 3_000_000)
    items = read(source_of([tmp_path], record_bytes=1_500_000))
    (record,) = bad(items)
    assert (record.reason, record.size, len(record.record)) == ("too_long", 3_000_000, 64 << 10)


def test_the_walk_is_sorted_and_follows_no_links(tmp_path: Path) -> None:
    for name in (
        "b/2.txt",
        "a.txt",
        "b/10.txt",
        "B.txt",
        "c.json",
        ".hidden/x.txt",
        "skip/x.txt",
        "b/.x.txt",
        "é.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name, "utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    root = tmp_path.name
    found = [file.label for file in scan([tmp_path], Choice(exclude=("skip/*",))).files]
    assert found == [f"{root}/{name}" for name in ("B.txt", "a.txt", "b/10.txt", "b/2.txt", "é.txt")]
    by_path = scan([tmp_path], Choice(globs=("b/*",), exclude=("10.*",)))
    assert [file.label for file in by_path.files] == [f"{root}/b/2.txt"]
    assert [f.label for f in scan([tmp_path], output=tmp_path / "b").files if "/b/" in f.label] == []


def test_a_name_that_is_no_utf8_can_be_said(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.txt"
    with open(path, "wb") as file:  # noqa: PTH123 - a Path cannot be made of such bytes as readably
        file.write(b"x")
    (file_found,) = scan([tmp_path]).files
    assert file_found.label.encode().endswith(b"/\\xff.txt")
    assert texts(read(source_of([tmp_path]))) == ["x"]


def test_inputs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for argument, says in (
        (tmp_path / "missing.jsonl", "missing.jsonl: no such file"),
        (tmp_path, r"holds no text: .*\*\.txt"),
        (Path("/dev/null"), "neither a file nor a folder"),
    ):
        with pytest.raises(InputError, match=says) as error:
            scan([argument])
        assert error.value.exit_code == 2
    (tmp_path / "x.pdf").touch()
    with pytest.raises(InputError, match=r"x\.pdf: this kind of file is not read"):
        scan([tmp_path / "x.pdf"])


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", {"text": "x"})
    source = source_of([path])
    path.unlink()
    with pytest.raises(InputError, match=r"x\.jsonl: cannot be read: No such file"):
        read(source)


def test_small_files_are_read_as_large_ones_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):  # more than are read in one hop
        (tmp_path / f"{number:03d}.txt").write_text("x" * (number % 7))
    (tmp_path / "100.txt").write_text("large" * SMALL_BYTES)
    source = source_of([tmp_path], group_records=9)
    (tmp_path / "150.txt").write_text("grown" * SMALL_BYTES)
    items = read(source)
    for cut in (1, 5, len(items) - 1):
        assert read(source, items[cut - 1].resume) == items[cut:]
    monkeypatch.setattr("stages.inputs.source.SMALL_BYTES", -1)
    assert read(source) == items


def test_a_small_file_that_vanishes_fails_in_its_turn(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"{number}")
    source = source_of([tmp_path], group_records=1)
    (tmp_path / "5.txt").unlink()
    found: list[str] = []

    async def collect() -> None:
        async for item in source.read(None):
            found.extend(item.value.texts)

    with pytest.raises(InputError, match=r"5\.txt: cannot be read: No such file"):
        asyncio.run(collect())
    assert found == ["0", "1", "2", "3", "4"]


def test_fingerprints_are_the_same_from_reading_and_from_hashing(mixed: Path, tmp_path: Path) -> None:
    single = write_lines(tmp_path / "single.jsonl", {"text": "x"})
    inputs = scan([mixed, single])
    digests = [digest for item in read(TextSource(inputs, ReadSpec())) for digest in item.value.finished]
    found = fingerprints(inputs, digests)
    assert found == fingerprints(inputs, hashed(inputs))
    assert [(given.name, given.files) for given in found] == [("mixed", 5), ("single.jsonl", 1)]
    assert found[1].blake3 == blake3(single.read_bytes()).hexdigest()
    (mixed / "c.txt").rename(mixed / "c2.txt")
    assert fingerprints(scan([mixed]), hashed(scan([mixed])))[0].blake3 != found[0].blake3
    with pytest.raises(ValueError, match="5 digests for 6 files"):
        fingerprints(inputs, digests[:5])


@pytest.mark.parametrize("name", ["record_bytes", "group_bytes", "group_records"])
def test_a_spec_is_checked_once(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ReadSpec(**{name: 0})
