"""The lmdb store: the contracts, its content, what damage it notices, and who may have it open at once."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus import LocalCorpus, Spans, open_corpus
from stages.corpus.lmdb_writer import LmdbWriter
from stages.corpus.stores import STORES
from stages.errors import CorpusDamaged, OutputBusy
from tests.contracts.corpus import DOCUMENTS, FLAT, LocalCorpusContract, StoreContract, spans, write_corpus


class TestUint16(LocalCorpusContract):
    @classmethod
    def open(cls, folder: Path) -> LocalCorpus:
        write_corpus(folder, store="lmdb")
        return open_corpus(folder)


class TestUint32(LocalCorpusContract):
    @classmethod
    def open(cls, folder: Path) -> LocalCorpus:
        write_corpus(folder, dtype="uint32", store="lmdb", at_once=1)
        return open_corpus(folder)


def pairs(folder: Path) -> list[tuple[bytes, bytes]]:
    """Keys and values in order, as anybody's lmdb reads them."""
    with lmdb.open(str(folder / "documents.lmdb"), subdir=False, readonly=True, max_dbs=2, lock=False) as env:
        database = env.open_db(b"documents", create=False)
        with env.begin(db=database) as transaction:
            return [(bytes(key), bytes(value)) for key, value in transaction.cursor()]


class TestStore(StoreContract):
    store = STORES["lmdb"]

    def content(self, folder: Path) -> object:
        return pairs(folder)


class TestStoreWhoseMapIsTooSmall(TestStore):
    def writer(self, folder: Path, at: object = None) -> LmdbWriter:
        return LmdbWriter(folder, "uint16", at=at, map_bytes=32 << 10)  # type: ignore[arg-type]  # plain data


def test_keys_are_numbers_in_order_and_values_are_ids(tmp_path: Path) -> None:
    write_corpus(tmp_path, store="lmdb")
    assert pairs(tmp_path) == [
        (number.to_bytes(8, "big"), np.array(ids, dtype="<u2").tobytes())
        for number, ids in enumerate(DOCUMENTS)
    ]


def test_the_map_grows(tmp_path: Path) -> None:
    with LmdbWriter(tmp_path, "uint32", map_bytes=32 << 10) as writer:
        for number in range(30):
            writer.append(np.full(20_000, number, dtype=np.uint32), np.full(20, 1000, dtype=np.uint32))
            if number % 7 == 0:
                writer.save({"number": number})
        assert writer.finish().documents == 600
    found = pairs(tmp_path)
    assert [np.frombuffer(value, dtype=np.uint32)[0] for _, value in found] == [n // 20 for n in range(600)]


@settings(max_examples=20, deadline=None)
@given(documents=st.lists(st.lists(st.integers(0, 65535), max_size=12), min_size=1, max_size=30))
def test_has_the_digest_of_the_same_documents_in_arrow(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("corpora")
    there = write_corpus(folder / "arrow", documents)
    here = write_corpus(folder / "lmdb", documents, store="lmdb")
    assert here.digest == there.digest
    assert (here.bounds, here.lengths) == (there.bounds, there.lengths)


def test_damage_is_noticed(tmp_path: Path) -> None:
    write_corpus(tmp_path, store="lmdb")
    with lmdb.open(str(tmp_path / "documents.lmdb"), subdir=False, max_dbs=2) as env:
        database = env.open_db(b"documents")
        with env.begin(write=True, db=database) as transaction:
            transaction.put((2).to_bytes(8, "big"), bytes(6))
    with open_corpus(tmp_path) as corpus, pytest.raises(CorpusDamaged, match="content digest"):
        corpus.verify()
    del corpus
    with lmdb.open(str(tmp_path / "documents.lmdb"), subdir=False, max_dbs=2) as env:
        database = env.open_db(b"documents")
        with env.begin(write=True, db=database) as transaction:
            transaction.put((3).to_bytes(8, "big"), b"")
            transaction.delete((4).to_bytes(8, "big"))
    with open_corpus(tmp_path) as corpus:
        with pytest.raises(CorpusDamaged, match="document 3 is not as long"):
            corpus.view(3, 0, 1)
        with pytest.raises(CorpusDamaged, match="lacks 1 of the documents 4 to 4"):
            corpus.view(4, 0, 1)
        with pytest.raises(CorpusDamaged):
            corpus.gather(spans((0, FLAT.size, 0)), np.zeros(FLAT.size, dtype=np.int64))


@pytest.mark.parametrize("data", [b"", b"x" * 5000, None])
def test_a_file_that_is_no_database(tmp_path: Path, data: bytes | None) -> None:
    write_corpus(tmp_path, store="lmdb")
    path = tmp_path / "documents.lmdb"
    path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(CorpusDamaged, match=r"documents.lmdb: cannot be opened"):
        open_corpus(tmp_path)


def test_many_corpora_of_one_folder(tmp_path: Path) -> None:
    """The library refuses a second environment of one file: they share it, and any of them may go first."""
    write_corpus(tmp_path / "a", store="lmdb")
    first, second = open_corpus(tmp_path / "a"), open_corpus(tmp_path / "a" / ".." / "a")
    view = first.view(2, 0, 3)
    first.close()
    second.close()
    del first, second
    gc.collect()
    assert view.tolist() == [1, 2, 3]
    with pytest.raises(OutputBusy, match="this process reads it"):
        STORES["lmdb"].writer(tmp_path / "a", "uint16")
    del view
    gc.collect()
    STORES["lmdb"].writer(tmp_path / "a", "uint16").close()


def test_a_forked_child_reads(tmp_path: Path) -> None:
    """As a DataLoader's workers do: an environment does not outlive a fork."""
    write_corpus(tmp_path, store="lmdb")
    with open_corpus(tmp_path) as corpus:
        pid = os.fork()
        if pid == 0:
            out = np.zeros(FLAT.size, dtype=np.int64)
            corpus.gather(spans((0, FLAT.size, 0)), out)
            os._exit(0 if (out == FLAT).all() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert corpus.view(2, 0, 3).tolist() == [1, 2, 3]


def test_reads_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(tmp_path, store="lmdb")
    real = lmdb.open

    def refused(path: str, **options: object) -> lmdb.Environment:
        if options["lock"]:
            raise lmdb.ReadonlyError(path)
        return real(path, **options)  # type: ignore[arg-type]  # handed on as given

    monkeypatch.setattr(lmdb, "open", refused)
    with open_corpus(tmp_path) as corpus:
        corpus.verify()


def test_threads_share_one_transaction(tmp_path: Path) -> None:
    write_corpus(tmp_path, DOCUMENTS * 50, store="lmdb")
    flat = np.tile(FLAT, 50)
    with open_corpus(tmp_path) as corpus, ThreadPoolExecutor(8) as threads:

        def one(start: int) -> bool:
            out = np.empty(20 * 100, dtype=np.int64)
            corpus.gather(Spans(np.full(20, start), np.full(20, 100), np.arange(20) * 100), out)
            return bool((out.reshape(20, 100) == flat[start : start + 100]).all())

        assert all(threads.map(one, range(0, 3000, 7)))
