"""The arrow store: the contract at every cut of batches and shards, its bytes, and what damage it notices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import State
from stages.corpus import ArrowWriter, LocalCorpus, Spans, open_corpus
from stages.corpus.stores import STORES
from stages.errors import CorpusDamaged, CorpusNotFound, CorpusUnsupported, StagesError
from tests.contracts.corpus import DOCUMENTS, FLAT, LocalCorpusContract, StoreContract, write_corpus

GOLDEN = Path(__file__).parents[1] / "golden"


class TestOneBatch(LocalCorpusContract):
    @classmethod
    def open(cls, folder: Path) -> LocalCorpus:
        write_corpus(folder)
        return open_corpus(folder)


class TestManyBatchesInOneShard(LocalCorpusContract):
    @classmethod
    def open(cls, folder: Path) -> LocalCorpus:
        write_corpus(folder, batch_tokens=4)
        return open_corpus(folder)


class TestManyShards(LocalCorpusContract):
    @classmethod
    def open(cls, folder: Path) -> LocalCorpus:
        write_corpus(folder, batch_tokens=1, shard_tokens=9)
        return open_corpus(folder)


class TestUint32(LocalCorpusContract):
    @classmethod
    def open(cls, folder: Path) -> LocalCorpus:
        write_corpus(folder, dtype="uint32", batch_tokens=6, shard_tokens=20)
        return open_corpus(str(folder))


class TestStore(StoreContract):
    store = STORES["arrow"]

    def writer(self, folder: Path, at: State | None = None) -> ArrowWriter:
        return ArrowWriter(folder, "uint16", batch_tokens=12, shard_tokens=50, at=at)


class TestStoreOfOneBatch(StoreContract):
    store = STORES["arrow"]


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_golden_bytes(tmp_path: Path) -> None:
    """The bytes on disk hold for ever: a corpus that was packed once must stay readable."""
    write_corpus(tmp_path / "corpus", batch_tokens=16, shard_tokens=32)
    golden = GOLDEN / "corpus"
    assert file_bytes(tmp_path / "corpus") == file_bytes(golden)
    with open_corpus(golden) as corpus:
        corpus.verify()
        assert corpus.meta.digest == "5fe05b290b654bc68cfb4aa36531f60659fd95f018a30b89ca73e2f06ec479d8"
        assert [corpus.view(d, 0, len(ids)).tolist() for d, ids in enumerate(DOCUMENTS)] == DOCUMENTS


@settings(max_examples=25, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 65535), max_size=12), min_size=1, max_size=30),
    batch=st.integers(1, 40),
    shard=st.integers(0, 60),
    at_once=st.integers(1, 30),
)
def test_bytes_depend_on_the_documents_alone(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], batch: int, shard: int, at_once: int
) -> None:
    folder = tmp_path_factory.mktemp("corpora")
    sizes = {"batch_tokens": batch, "shard_tokens": batch + shard}
    one_by_one = write_corpus(folder / "a", documents, at_once=1, **sizes)
    write_corpus(folder / "b", documents, at_once=at_once, **sizes)
    assert file_bytes(folder / "a") == file_bytes(folder / "b")
    # Other shards are other bytes, but the same content.
    assert write_corpus(folder / "c", documents).digest == one_by_one.digest
    with open_corpus(folder / "a") as corpus:
        corpus.verify()
        flat = [token for document in documents for token in document]
        out = np.empty(len(flat), dtype=np.int64)
        corpus.gather(Spans(*(np.array([value]) for value in (0, len(flat), 0))), out)
        assert out.tolist() == flat


def test_other_content_has_another_digest(tmp_path: Path) -> None:
    digests = {
        write_corpus(tmp_path / str(number), documents, dtype).digest
        for number, (documents, dtype) in enumerate(
            [
                ([[1, 2], [3]], "uint16"),
                ([[1], [2, 3]], "uint16"),
                ([[1, 2, 3]], "uint16"),
                ([[1, 2], [4]], "uint16"),
                ([[1, 2], [3], []], "uint16"),
                ([[1, 2], [3]], "uint32"),
            ]
        )
    }
    assert len(digests) == 6


def test_pyarrow_reads_it_as_it_is(tmp_path: Path) -> None:
    meta = write_corpus(tmp_path, batch_tokens=10, shard_tokens=30)
    rows: list[list[int]] = []
    for shard in meta.shards:
        with pa.memory_map(str(tmp_path / shard.file.name)) as file:
            rows += pa.ipc.open_file(file).read_all()["tokens"].to_pylist()
    assert rows == DOCUMENTS
    with pa.memory_map(str(tmp_path / "lengths.arrow")) as file:
        assert pa.ipc.open_file(file).read_all()["length"].to_pylist() == [len(row) for row in DOCUMENTS]


def test_bounds_and_lengths_are_mapped(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    before = pa.total_allocated_bytes()
    with open_corpus(tmp_path) as corpus:
        assert not corpus.bounds.flags.owndata
        assert not corpus.lengths.flags.owndata
        assert not corpus.bounds.flags.writeable
        assert pa.total_allocated_bytes() == before


def test_a_writer_refuses_what_does_not_fit_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_tokens"):
        ArrowWriter(tmp_path, "uint16", batch_tokens=10, shard_tokens=5)
    writer = ArrowWriter(tmp_path, "uint16")
    with pytest.raises(ValueError, match="3 tokens of uint16 for 1 documents"):
        writer.append(np.zeros(3, dtype=np.uint16), np.array([2], dtype=np.uint32))
    with pytest.raises(ValueError, match="uint32"):
        writer.append(np.zeros(2, dtype=np.uint32), np.array([2], dtype=np.uint32))
    writer.close()


@pytest.mark.parametrize(
    ("start", "length", "at", "says"),
    [
        ([0], [1], [-1], "negative"),
        ([0], [-1], [0], "negative"),
        ([-1], [1], [0], "negative"),
        ([0, 1], [1], [0], "one length"),
        ([[0]], [[1]], [[0]], "one length"),
    ],
)
def test_spans_are_checked_once(start: list[int], length: list[int], at: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Spans(np.array(start), np.array(length), np.array(at))


def test_spans_are_of_int64() -> None:
    with pytest.raises(ValueError, match="int32"):
        Spans(np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))  # type: ignore[arg-type]  # the point


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    path = folder / "corpus.json"
    raw = json.loads(path.read_bytes())
    change(raw)
    path.write_text(json.dumps(raw), "utf-8")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        (lambda f: (f / "corpus.json").unlink(), CorpusNotFound, "holds no corpus.json"),
        (lambda f: cut(f / "corpus.json") or cut(f / "corpus.json"), CorpusDamaged, "is no JSON"),
        (lambda f: edit(f, lambda raw: raw.update(format=2)), CorpusUnsupported, "format 2"),
        (lambda f: edit(f, lambda raw: raw.pop("tokens")), CorpusDamaged, "tokens: Field required"),
        (lambda f: edit(f, lambda raw: raw.update(tokens=5)), CorpusDamaged, "sum to 72"),
        (
            lambda f: edit(f, lambda raw: raw["bounds"].update(name="../x")),
            CorpusDamaged,
            "no plain file name",
        ),
        (lambda f: cut(f / "tokens-00000.arrow"), CorpusDamaged, r"tokens-00000.arrow: has \d+ bytes"),
        (lambda f: (f / "lengths.arrow").unlink(), CorpusDamaged, "lengths.arrow: cannot be read"),
        (lambda f: flip(f / "tokens-00000.arrow", -1), CorpusDamaged, "tokens-00000.arrow: is no Arrow file"),
    ],
)
def test_damage_is_noticed_when_opening(
    tmp_path: Path, damage: Callable[[Path], object], error: type[StagesError], says: str
) -> None:
    write_corpus(tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=says):
        open_corpus(tmp_path)


def test_a_folder_that_is_no_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusNotFound, match="no such folder") as missing:
        open_corpus(tmp_path / "missing")
    assert missing.value.exit_code == 2
    (tmp_path / "file").touch()
    with pytest.raises(CorpusNotFound, match="not a folder"):
        open_corpus(tmp_path / "file")
    (tmp_path / "packing.json").touch()
    with pytest.raises(CorpusNotFound, match="has not finished"):
        open_corpus(tmp_path)


def test_verify_notices_any_flipped_bit(tmp_path: Path) -> None:
    meta = write_corpus(tmp_path, batch_tokens=16, shard_tokens=32)
    names = [*(file.name for file in meta.files()), "tokenizer.json"]
    rng = np.random.default_rng(0)
    for name in names:
        for at in rng.integers(0, (tmp_path / name).stat().st_size, 12).tolist():
            flip(tmp_path / name, at)
            with pytest.raises(CorpusDamaged, match=name):
                open_corpus(tmp_path).verify()
            flip(tmp_path / name, at)
    open_corpus(tmp_path).verify()


def test_verify_notices_another_digest(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    edit(tmp_path, lambda raw: raw.update(digest="0" * 64))
    with open_corpus(tmp_path) as corpus, pytest.raises(CorpusDamaged, match="content digest"):
        corpus.verify()


def test_a_run_over_many_batches_among_many_runs(tmp_path: Path) -> None:
    """More runs than the loop takes, each within one batch but one: the array path must leave none of them out."""
    write_corpus(tmp_path, batch_tokens=60)
    starts = np.array([0] * 99 + [40])
    out = np.empty(100 * 30, dtype=np.int64)
    with open_corpus(tmp_path) as corpus:
        corpus.gather(Spans(starts, np.full(100, 30), np.arange(100) * 30), out)
    assert (out.reshape(100, 30) == np.stack([FLAT[s : s + 30] for s in starts])).all()
