"""Every format gives the texts that were written, from any state, however its bytes are cut or damaged."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import lzma
import random
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import Item, State
from stages.errors import InputError
from stages.inputs import Bad, Choice, Group, ReadSpec, TextSource, scan
from stages.inputs.crc32c import crc32c, masked_crc32c
from stages.inputs.example import example_text
from stages.inputs.fingerprint import fingerprints
from stages.inputs.inflate import PIECE_BYTES, Coding, inflate
from stages.inputs.record import Refused
from tests.contracts.engine import SourceContract

TEXTS = [f"{number} " + "wörd " * (number * 7 % 40) for number in range(60)]


def json_lines(texts: Sequence[str]) -> bytes:
    return b"".join(json.dumps({"text": text, "n": 1}).encode() + b"\n" for text in texts)


def table(texts: Sequence[str]) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(len(texts)), pa.int64()), "text": pa.array(list(texts), pa.string())}
    )


def parquet(texts: Sequence[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table(texts), sink, row_group_size=17)
    return sink.getvalue()


def arrow_stream(texts: Sequence[str]) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table(()).schema) as writer:
        writer.write_table(table(texts), max_chunksize=13)
    return sink.getvalue()


def arrow_file(texts: Sequence[str]) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table(()).schema) as writer:
        writer.write_table(table(texts), max_chunksize=13)
    return sink.getvalue()


def tar_of(members: Sequence[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def tar(texts: Sequence[str]) -> bytes:
    return tar_of(
        [
            member
            for number, text in enumerate(texts)
            for member in (
                [
                    (f"{number:05d}.json", b'{"width": 3}'),
                    (f"{number:05d}.txt", text.encode()),
                    (f"{number:05d}.jpg", b"j"),
                ]
                if number % 2
                else [(f"{number:05d}.json", json.dumps({"text": text}).encode())]
            )
        ]
    )


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def message(*fields: tuple[int, bytes]) -> bytes:
    return b"".join(varint(number << 3 | 2) + varint(len(value)) + value for number, value in fields)


def example(features: dict[str, bytes]) -> bytes:
    entries = (
        (1, message((1, name.encode()), (2, message((1, message((1, value)))))))
        for name, value in features.items()
    )
    return message((1, message(*entries)))


def tfrecord_of(records: Sequence[bytes]) -> bytes:
    parts = []
    for record in records:
        size = struct.pack("<Q", len(record))
        parts += [
            size,
            struct.pack("<I", masked_crc32c(size)),
            record,
            struct.pack("<I", masked_crc32c(record)),
        ]
    return b"".join(parts)


def tfrecord(texts: Sequence[str]) -> bytes:
    return tfrecord_of([example({"id": b"x", "text": text.encode()}) for text in texts])


def mds_of(columns: dict[str, tuple[str, int | None]], samples: Sequence[dict[str, bytes]]) -> bytes:
    names = sorted(columns)
    config = json.dumps(
        {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": 1 << 26,
            "column_names": names,
            "column_encodings": [columns[name][0] for name in names],
            "column_sizes": [columns[name][1] for name in names],
        },
        sort_keys=True,
    ).encode()
    rows = [
        struct.pack(
            f"<{sum(columns[name][1] is None for name in names)}I",
            *(len(sample[name]) for name in names if columns[name][1] is None),
        )
        + b"".join(sample[name] for name in names)
        for sample in samples
    ]
    ends = np.cumsum([0, *map(len, rows)]) + 4 + 4 * (len(rows) + 1) + len(config)
    return struct.pack("<I", len(rows)) + ends.astype("<u4").tobytes() + config + b"".join(rows)


def mds(texts: Sequence[str]) -> bytes:
    columns: dict[str, tuple[str, int | None]] = {
        "id": ("int", 8),
        "text": ("str", None),
        "meta": ("json", None),
    }
    return mds_of(columns, [{"id": b"\1" * 8, "text": text.encode(), "meta": b"{}"} for text in texts])


FORMATS: dict[str, Callable[[Sequence[str]], bytes]] = {
    "x.jsonl": json_lines,
    "x.jsonl.gz": lambda texts: gzip.compress(json_lines(texts[:9])) + gzip.compress(json_lines(texts[9:])),
    "x.jsonl.xz": lambda texts: (
        lzma.compress(json_lines(texts[:9])) + b"\0" * 4 + lzma.compress(json_lines(texts[9:]))
    ),
    "x.jsonl.zst": lambda texts: (
        zstandard.compress(json_lines(texts[:9])) + zstandard.compress(json_lines(texts[9:]))
    ),
    "x.parquet": parquet,
    "s.arrow": arrow_stream,
    "f.arrow": arrow_file,
    "x.tar": tar,
    "x.tgz": lambda texts: gzip.compress(tar(texts)),
    "x.tfrecord": tfrecord,
    "x.tfrecord-00000-of-00001": tfrecord,
    "x.tfrecords.gz": lambda texts: gzip.compress(tfrecord(texts)),
    "x.mds": mds,
    "x.mds.zstd": lambda texts: zstandard.compress(mds(texts)),
}
CHECKED = ("x.jsonl.xz", "x.jsonl.gz", "x.tfrecord", "x.tfrecord-00000-of-00001", "x.tfrecords.gz")
"""Formats in which no damage goes unseen."""
UNMARKED = ("x.jsonl", "x.jsonl.gz", "x.jsonl.xz", "x.jsonl.zst", "x.tfrecord", "x.tfrecord-00000-of-00001")


def read(source: TextSource, at: State | None = None) -> list[Item[Group]]:
    async def collect() -> list[Item[Group]]:
        return [item async for item in source.read(at)]

    return asyncio.run(collect())


def texts_of(items: Sequence[Item[Group]]) -> list[str]:
    return [text for item in items for text in item.value.texts]


def bad_of(items: Sequence[Item[Group]]) -> list[Bad]:
    return [record for item in items for record in item.value.bad]


def read_file(path: Path, data: bytes, spec: ReadSpec | None = None) -> list[Item[Group]]:
    path.write_bytes(data)
    return read(TextSource(scan([path]), spec or ReadSpec()))


def reasons(items: Sequence[Item[Group]]) -> list[tuple[str, str]]:
    return [(bad.provenance, bad.reason) for bad in bad_of(items)]


@pytest.mark.parametrize("name", FORMATS)
def test_gives_the_texts_that_were_written(tmp_path: Path, name: str) -> None:
    items = read_file(tmp_path / name, FORMATS[name](TEXTS))
    assert texts_of(items) == TEXTS
    assert bad_of(items) == []
    assert sum(item.value.read_bytes for item in items) == (tmp_path / name).stat().st_size


@pytest.mark.parametrize("name", FORMATS)
def test_resumes_at_every_cut(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMATS[name](TEXTS))
    source = TextSource(scan([tmp_path / name]), ReadSpec(group_records=5))
    items = read(source)
    assert len(items) > 10
    for cut, item in enumerate(items, 1):
        rest = read(source, item.resume)
        assert [(g.value.texts, g.value.provenance, g.resume) for g in rest] == [
            (g.value.texts, g.value.provenance, g.resume) for g in items[cut:]
        ]


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.endswith((".parquet", ".arrow"))])
@pytest.mark.parametrize("piece_bytes", [1, 7, 511, 4096])
def test_does_not_depend_on_where_the_bytes_are_cut(
    tmp_path: Path, name: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reading a byte at a time hops to a thread for each: a small file will do.
    texts = TEXTS[:4] if piece_bytes == 1 else TEXTS
    monkeypatch.setattr("stages.inputs.reading.READ_BYTES", piece_bytes)
    monkeypatch.setattr("stages.inputs.source.SMALL_BYTES", -1)
    assert texts_of(read_file(tmp_path / name, FORMATS[name](texts))) == texts


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_cut_short_loses_nothing_before_the_cut(tmp_path: Path, name: str) -> None:
    whole = FORMATS[name](TEXTS)
    draw = random.Random(5)
    for kept in sorted(draw.sample(range(len(whole)), 25)):
        items = read_file(tmp_path / name, whole[:kept])
        got = texts_of(items)
        assert got == TEXTS[: len(got)]
        # Cut between two records or two members, where no end is marked, nobody can tell.
        assert len(bad_of(items)) == 1 or (not bad_of(items) and (got == TEXTS or name in UNMARKED))
        if name in ("x.jsonl", "x.tfrecord", "x.mds", "x.tar"):
            assert len(got) >= len(TEXTS) * kept // len(whole) - 20


@pytest.mark.parametrize("name", FORMATS)
def test_damage_never_goes_unnamed_or_ends_the_reading(tmp_path: Path, name: str) -> None:
    whole = FORMATS[name](TEXTS)
    draw = random.Random(6)
    after = tmp_path / "zz.jsonl"
    after.write_bytes(json_lines(["after"]))
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 1, 4, 40))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        (tmp_path / name).write_bytes(data)
        items = read(TextSource(scan([tmp_path / name, after]), ReadSpec(record_bytes=100_000)))
        got = texts_of(items)
        assert got[-1] == "after"
        if name in CHECKED:
            assert not name.startswith("x.tfrecord-") or set(got[:-1]) <= set(TEXTS)
            assert bad_of(items) or got[:-1] == TEXTS


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("data", [b"", b"\0", b"\0" * 5120, b"no such format " * 300, b"\xff" * 4096])
def test_what_is_no_such_file_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    items = read_file(tmp_path / name, data)
    assert texts_of(items) == []
    nothing = data == b"" and (name.startswith("x.jsonl") or "tfrecord" in name)
    padding = not data.strip(b"\0") and name.endswith((".gz", ".xz"))
    archive_without_members = data == b"\0" * 5120 and name == "x.tar"
    assert len(bad_of(items)) == (0 if nothing or padding or archive_without_members else 1)


class TestEveryFormat(SourceContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        for name, write in FORMATS.items():
            (tmp_path / name).write_bytes(write(TEXTS[:10]))
        (tmp_path / "broken.parquet").write_bytes(b"PAR1")
        self._root = tmp_path

    def make_source(self) -> TextSource:
        choice = Choice(globs=("*",))
        return TextSource(scan([self._root], choice), ReadSpec(group_records=4))


# Compression


@pytest.mark.parametrize("coding", ["gzip", "xz", "zstd"])
@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(st.binary(max_size=3000), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 9999), max_size=5),
)
def test_inflates_members_end_to_end(coding: Coding, parts: list[bytes], cuts: list[int]) -> None:
    compress = {"gzip": gzip.compress, "xz": lzma.compress, "zstd": zstandard.compress}[coding]
    whole = b"".join(compress(part) for part in parts)
    places = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    inflating = inflate(coding)
    found = b"".join(piece for start, stop in pairwise(places) for piece in inflating.feed(whole[start:stop]))
    assert found == b"".join(parts)
    assert inflating.finish() is None


@pytest.mark.parametrize(("coding", "most"), [("gzip", PIECE_BYTES), ("xz", PIECE_BYTES), ("zstd", 34 << 20)])
def test_a_bomb_is_inflated_in_small_pieces(coding: Coding, most: int) -> None:
    bomb = b"\0" * (200 << 20)
    data = {
        "gzip": lambda: gzip.compress(bomb, 1),
        "xz": lambda: lzma.compress(bomb, preset=0),
        "zstd": lambda: zstandard.compress(bomb),
    }[coding]()
    inflating = inflate(coding)
    sizes = [len(piece) for piece in inflating.feed(data)]
    assert sum(sizes) == len(bomb)
    assert max(sizes) <= most
    assert inflating.finish() is None


def test_an_xz_file_that_asks_for_much_memory_is_bad(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 16}]
    data = bytearray(lzma.compress(b'{"text": "x"}\n', filters=filters))
    # Writing one would take 10 times the memory. The size stands in the block's header, after that of the stream.
    assert data[14:16] == b"\x21\x01"
    data[16] = 36  # 1 GiB
    data[20:24] = struct.pack("<I", zlib.crc32(bytes(data[12:20])))
    items = read_file(tmp_path / "x.jsonl.xz", bytes(data))
    assert reasons(items) == [("x.jsonl.xz:1", "broken_xz")]
    assert "memory" in bad_of(items)[0].detail.lower()


def test_one_letter_of_damage_in_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    data = gzip.compress(json_lines(["before"])) + gzip.compress(json_lines(["after"]))
    at = len(gzip.compress(json_lines(["before"])))
    items = read_file(tmp_path / "x.jsonl.gz", data[:at] + b"!" + data[at + 1 :])
    assert texts_of(items) == ["before"]
    assert reasons(items) == [("x.jsonl.gz:2", "broken_gzip")]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_may_end_as_they_do_elsewhere(tmp_path: Path, ending: str) -> None:
    data = "\ufeff" + ending.join(['{"text": "a"}', "", '{"text": "b\\r\\n"}', "  ", '{"text": "c"}'])
    assert texts_of(read_file(tmp_path / "x.jsonl", data.encode())) == ["a", "b\r\n", "c"]


def test_a_line_of_100_mb_in_gzip_is_one_bad_record(tmp_path: Path) -> None:
    data = json_lines(["a"]) + b'{"text": "' + b"x" * 100_000_000 + b'"}\n' + json_lines(["b"])
    items = read_file(tmp_path / "x.jsonl.gz", gzip.compress(data, 1))
    assert texts_of(items) == ["a", "b"]
    assert [(bad.row, bad.reason, bad.size, len(bad.record)) for bad in bad_of(items)] == [
        (2, "too_long", 100_000_012, 64 << 10)
    ]


def test_compressed_text_is_one_document(tmp_path: Path) -> None:
    assert texts_of(read_file(tmp_path / "x.txt.gz", gzip.compress(b"a\nb"))) == ["a\nb"]
    items = read_file(tmp_path / "y.md.xz", lzma.compress(b"a\nb" * 1000)[:-20])
    assert reasons(items) == [("y.md.xz:1", "truncated_xz")]


# Tables


def write_parquet(path: Path, columns: dict[str, object], **options: object) -> Path:
    pq.write_table(pa.table(columns), path, **options)  # type: ignore[arg-type]  # whatever write_table takes
    return path


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_values_that_are_no_documents_are_named(tmp_path: Path, name: str) -> None:
    raw = [b"good", None, b"", b"\xff\xfe", b"x" * 5000, "é".encode()]
    offsets = np.cumsum([0, *(len(value or b"") for value in raw)]).astype("<i4")
    mask = np.packbits([value is not None for value in raw], bitorder="little").tobytes()
    column = pa.StringArray.from_buffers(
        len(raw),
        pa.py_buffer(offsets.tobytes()),
        pa.py_buffer(b"".join(value or b"" for value in raw)),
        pa.py_buffer(mask),
    )
    path = tmp_path / name
    written = pa.table({"text": column})
    if name == "x.arrow":
        with pa.ipc.new_stream(str(path), written.schema) as writer:
            writer.write_table(written)
    else:
        pq.write_table(written, path)
    items = read(TextSource(scan([path]), ReadSpec(record_bytes=1000)))
    assert texts_of(items) == ["good", "é"]
    assert reasons(items) == [
        (f"{name}:2", "wrong_type"),
        (f"{name}:3", "empty_text"),
        (f"{name}:4", "invalid_utf8"),
        (f"{name}:5", "too_long"),
    ]


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_every_kind_of_strings_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(["a", None, "b", "a"], pa.string()).cast(kind)
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), pa.schema([("text", kind)])) as writer:
        writer.write_table(pa.table({"text": column}))
    assert texts_of(read(TextSource(scan([tmp_path / "x.arrow"]), ReadSpec()))) == ["a", "b", "a"]
    if kind != pa.string_view():
        write_parquet(tmp_path / "x.parquet", {"text": column})
        assert texts_of(read(TextSource(scan([tmp_path / "x.parquet"]), ReadSpec()))) == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("columns", "reason", "says"),
    [
        ({"body": ["a"], "id": [1]}, "missing_field", "no column 'text'; it has 'body', 'id'"),
        ({"text": [1]}, "wrong_type", "column 'text': expected strings, found int64"),
        ({"text": [["a"]]}, "wrong_type", "found list"),
    ],
)
def test_a_table_without_texts_is_one_bad_record(
    tmp_path: Path, columns: dict[str, object], reason: str, says: str
) -> None:
    items = read(TextSource(scan([write_parquet(tmp_path / "x.parquet", columns)]), ReadSpec()))
    (bad,) = bad_of(items)
    assert bad.reason == reason
    assert says in bad.detail


def test_a_damaged_row_group_is_one_bad_record_and_the_next_is_read(tmp_path: Path) -> None:
    rows = [f"{number} " * 50 for number in range(90)]
    path = write_parquet(tmp_path / "x.parquet", {"text": rows}, row_group_size=30, compression="zstd")
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    data[begin : begin + chunk.total_compressed_size] = b"\xaa" * chunk.total_compressed_size
    path.write_bytes(data)
    source = TextSource(scan([path]), ReadSpec(group_records=7))
    items = read(source)
    assert texts_of(items) == rows[:30] + rows[60:]
    assert reasons(items) == [("x.parquet:31", "broken_parquet")]
    assert "row group 1: 30 rows" in bad_of(items)[0].detail
    for cut, item in enumerate(items, 1):
        assert [g.value.texts for g in read(source, item.resume)] == [g.value.texts for g in items[cut:]]


def test_large_row_groups_are_decoded_some_rows_at_a_time(tmp_path: Path) -> None:
    rows = ["x" * 100_000] * 300
    path = write_parquet(tmp_path / "x.parquet", {"text": rows, "other": rows}, use_dictionary=False)
    items = read(TextSource(scan([path]), ReadSpec()))
    assert texts_of(items) == rows
    assert len(items) == -(-300 // 11)  # groups of 1 MiB


def test_a_folder_that_datasets_saved_gives_its_data_alone(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        (folder / split / "data-00000-of-00001.arrow").write_bytes(arrow_stream([split]))
        (folder / split / "cache-1234.arrow").write_bytes(arrow_stream(["of another computation"]))
        (folder / split / "dataset_info.json").write_text("{}")
        (folder / split / "state.json").write_text(
            json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
        )
    assert texts_of(read(TextSource(scan([folder / "train"]), ReadSpec()))) == ["train"]
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InputError, match=r"saved: holds the splits train, test; name the one to read"):
        scan([folder])
    (folder / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert texts_of(read(TextSource(scan([folder]), ReadSpec()))) == ["test"]
    (folder / "test" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(InputError, match=r"saved/test: lacks data-00000-of-00001\.arrow"):
        scan([folder])
    (folder / "test" / "state.json").write_text("{")
    with pytest.raises(InputError, match=r"saved/test/state\.json: is no JSON"):
        scan([folder])


# Tar


def test_samples_of_a_tar_give_their_texts(tmp_path: Path) -> None:
    long = "d/" * 120 + "7.txt"
    members = [
        ("./1.json", b'{"text": "one"}'),
        ("2.json", b'{"caption": "no document where there is text"}'),
        ("2.txt", b"two"),
        ("2.jpg", b"\xff\xd8"),
        ("3.jsonl", b'\xef\xbb\xbf{"text": "three"}\n\n{"text": 3}\r\n{"text": "four"}'),
        (".hidden.txt", b"hidden"),
        ("5.txt", b""),
        ("6.jpg", b"\xff" * 600),
        ("6.cls", b"1"),
        (long, b"seven"),
        ("8.pyd", b"\x80\x04N."),
        ("8.txt", b"eight"),
        ("9.en.txt", b"nine"),
        ("9.de.txt", b"neun"),
    ]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        items = read_file(tmp_path / "x.tar", tar_of(members, form))
        assert texts_of(items) == ["one", "two", "three", "four", "seven", "eight", "nine", "neun"]
        assert reasons(items) == [
            ("x.tar/3.jsonl:3", "wrong_type"),
            ("x.tar/5.txt:1", "empty_text"),
            ("x.tar/6.jpg:1", "missing_field"),
            ("x.tar/8.pyd:1", "pickled"),
        ]


def test_tars_may_be_joined_and_hold_what_is_no_file(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        folder = tarfile.TarInfo("d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo("d/l.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    items = read_file(tmp_path / "x.tar", sink.getvalue() + tar_of([("a.txt", b"a")]))
    assert texts_of(items) == ["a"]
    assert bad_of(items) == []


def test_a_large_member_is_bad_and_the_next_is_read(tmp_path: Path) -> None:
    members = [
        ("1.json", b'{"text": "' + b"x" * 300_000 + b'"}'),
        ("2.txt", b"x" * 300_000),
        ("3.txt", b"three"),
    ]
    items = read_file(tmp_path / "x.tar", tar_of(members), ReadSpec(record_bytes=100_000))
    assert texts_of(items) == ["three"]
    assert reasons(items) == [("x.tar/1.json:1", "too_long"), ("x.tar/2.txt:1", "too_long")]
    assert [bad.size for bad in bad_of(items)] == [300_012, 300_000]


# TFRecord


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (b"\0" * 32, 0x8A9136AA),
        (bytes(range(32)), 0x46DD794E),
        (b"a", 0xC1D04330),
    ],
)
def test_crc32c_is_the_standard_one(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=1500))
def test_crc32c_equals_the_loop_over_bytes(data: bytes) -> None:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert crc32c(data) == crc ^ 0xFFFFFFFF


def test_records_that_are_no_texts_are_named(tmp_path: Path) -> None:
    floats = message((1, message((1, message((1, b"text"), (2, message((2, message((1, b"\0\0\0\0"))))))))))
    records = [
        example({"text": b"a"}),
        example({"body": b"a"}),
        floats,
        b"\x0a\xff\xff\xff\xff\x0f",
        example({"text": b""}),
        example({"text": b"\xff"}),
        example({"text": b"x" * 5000}),
        message((1, message((1, message((1, b"text"), (2, message((1, message((1, b"a"), (1, b"b")))))))))),
        example({"text": b"b"}),
    ]
    items = read_file(tmp_path / "x.tfrecord", tfrecord_of(records), ReadSpec(record_bytes=1000))
    assert texts_of(items) == ["a", "b"]
    assert [(bad.row, bad.reason) for bad in bad_of(items)] == [
        (2, "missing_field"),
        (3, "wrong_type"),
        (4, "broken_tfrecord"),
        (5, "empty_text"),
        (6, "invalid_utf8"),
        (7, "too_long"),
        (8, "wrong_type"),
    ]


def test_a_damaged_record_is_bad_and_the_next_is_read(tmp_path: Path) -> None:
    data = bytearray(tfrecord_of([example({"text": text.encode() * 9}) for text in "abc"]))
    data[len(data) // 2] ^= 1
    items = read_file(tmp_path / "x.tfrecord", bytes(data))
    assert texts_of(items) == ["a" * 9, "c" * 9]
    assert reasons(items) == [("x.tfrecord:2", "broken_tfrecord")]


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=80))
def test_any_bytes_are_an_example_or_not(data: bytes) -> None:
    assert isinstance(example_text(data, "text"), Refused)


# MDS


def test_columns_of_mds_are_read_and_pickles_are_not(tmp_path: Path) -> None:
    columns: dict[str, tuple[str, int | None]] = {"a": ("pkl", None), "n": ("int", 8), "text": ("str", None)}
    samples = [
        {"a": b"\x80\x04N.", "n": b"\0" * 8, "text": text} for text in (b"x", b"", b"\xff", b"y" * 2000)
    ]
    items = read_file(tmp_path / "x.mds", mds_of(columns, samples), ReadSpec(record_bytes=1000))
    assert texts_of(items) == ["x"]
    assert [bad.reason for bad in bad_of(items)] == ["empty_text", "invalid_utf8", "too_long"]
    assert reasons(read_file(tmp_path / "x.mds", mds_of(columns, samples), ReadSpec(field="a"))) == [
        ("x.mds:1", "pickled")
    ]
    (bad,) = bad_of(read_file(tmp_path / "x.mds", mds_of(columns, samples), ReadSpec(field="n")))
    assert (bad.reason, bad.detail) == ("wrong_type", "column 'n': expected str, bytes or json, found int")
    values = [{"text": value} for value in (b'"a\\u00e9"', b"3", b"{", b'"\\ud800"')]
    items = read_file(tmp_path / "x.mds", mds_of({"text": ("json", None)}, values))
    assert texts_of(items) == ["aé"]
    assert [bad.reason for bad in bad_of(items)] == ["wrong_type", "broken_json", "invalid_utf8"]


def test_a_sample_that_does_not_add_up_is_bad_and_the_next_is_read(tmp_path: Path) -> None:
    columns: dict[str, tuple[str, int | None]] = {"a": ("str", None), "text": ("str", None)}
    data = bytearray(mds_of(columns, [{"a": b"a", "text": text} for text in (b"one", b"two", b"three")]))
    at = data.index(struct.pack("<II", 1, 3) + b"atwo")
    data[at] = 200
    items = read_file(tmp_path / "x.mds", bytes(data))
    assert texts_of(items) == ["one", "three"]
    assert reasons(items) == [("x.mds:2", "broken_mds")]


def test_a_head_of_mds_that_asks_for_much_is_bad(tmp_path: Path) -> None:
    items = read_file(tmp_path / "x.mds", b"\xff\xff\xff\xff" * 1000)
    assert reasons(items) == [("x.mds:1", "broken_mds")]


# Which files, and how much of them


def test_patterns_stand_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/1.jsonl", "a/2.jsonl", "b/c/3.jsonl", "b/4.txt", "b/.5.jsonl", "odd[1].jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(json_lines([name]))
    root = tmp_path.name

    def labels(pattern: str, choice: Choice | None = None) -> list[str]:
        return [file.label.removeprefix(f"{root}/") for file in scan([tmp_path / pattern], choice).files]

    assert labels("*/*.jsonl") == ["a/1.jsonl", "a/2.jsonl"]
    assert labels("**/*.jsonl") == ["a/1.jsonl", "a/2.jsonl", "b/c/3.jsonl", "odd[1].jsonl"]
    assert labels("**/*.jsonl", Choice(exclude=("a/*",))) == ["b/c/3.jsonl", "odd[1].jsonl"]
    assert labels("odd[1].jsonl") == ["odd[1].jsonl"]
    with pytest.raises(InputError, match=r"z\*: matches no file"):
        scan([tmp_path / "z*"])
    monkeypatch.chdir(tmp_path)
    found = scan([Path("[ab]/?.*")])
    assert found.names == (f"{root}/[ab]/?.*",)
    assert found.folders == (True,)
    assert len(found.files) == 3


@pytest.mark.parametrize("group_records", [1, 4, 1000])
def test_a_limit_ends_the_reading(
    tmp_path: Path, group_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.inputs.source.SMALL_BYTES", -1)
    monkeypatch.setattr("stages.inputs.reading.READ_BYTES", 16)
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_bytes(
            json_lines([f"{name}{number}" for number in range(5)]) + b"{\n"
        )
    inputs = scan([tmp_path])
    source = TextSource(inputs, ReadSpec(limit=7, group_records=group_records))
    items = read(source)
    assert texts_of(items) == ["a0", "a1", "a2", "a3", "a4", "b0", "b1"]
    assert len(bad_of(items)) == 1
    for cut, item in enumerate(items, 1):
        assert [g.value.texts for g in read(source, item.resume)] == [g.value.texts for g in items[cut:]]
    digests = [digest for item in items for digest in item.value.finished]
    assert [digest.index for digest in digests] == [0, 1]
    whole = (tmp_path / "b.jsonl").read_bytes()
    assert (digests[1].bytes, digests[1].blake3) == (len(whole), blake3(whole).hexdigest())
    assert fingerprints(inputs, digests, limited=True)[0].files == 2


def test_files_that_are_not_read_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("x.bz2", "x.pkl", "x.bin", "x.parquet.gz", "x.gz", "x.jsonl.gz.gz", "x.zip", "x.npy"):
        (tmp_path / name).touch()
        with pytest.raises(InputError, match=f"{name}: this kind of file is not read; give .jsonl"):
            scan([tmp_path / name])
