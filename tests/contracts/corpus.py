"""What every corpus store must do: subclass the contract, say how the store is written, and get its tests."""

from __future__ import annotations

import asyncio
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline import State
from stages.corpus import (
    ArrowWriter,
    CorpusMeta,
    CorpusReader,
    CorpusWriter,
    LocalCorpus,
    Spans,
    Store,
    TokenizerMeta,
    claimed,
    open_corpus,
)
from stages.corpus.growing import NotResumable
from stages.corpus.meta import Dtype, StoreName
from stages.corpus.stores import STORES
from stages.errors import CorpusClosed, SpanError

DOCUMENTS = [[7], [], [1, 2, 3], [65535, 0, 9, 9], [5] * 40, [4, 3, 2, 1, 0], [8] * 17, [6, 6]]
"""Short and long ones, an empty one, the largest id of uint16; 72 tokens."""


def write_corpus(
    folder: Path,
    documents: Sequence[Sequence[int]] = DOCUMENTS,
    dtype: Dtype = "uint16",
    *,
    batch_tokens: int = 1 << 20,
    shard_tokens: int = 1 << 20,
    at_once: int = 3,
    store: StoreName = "arrow",
) -> CorpusMeta:
    """Write a corpus of these ids, `at_once` documents at a time; its tokenizer.json is a stand-in."""
    data = b'{"stand-in": true}\n'
    with claimed(folder) as output:
        output.begin()
        (folder / "tokenizer.json").write_bytes(data)
        writer: CorpusWriter = (
            ArrowWriter(folder, dtype, batch_tokens=batch_tokens, shard_tokens=shard_tokens)
            if store == "arrow"
            else STORES[store].writer(folder, dtype)
        )
        for at in range(0, len(documents), at_once):
            some = documents[at : at + at_once]
            ids = np.array([token for document in some for token in document], dtype=dtype)
            writer.append(ids, np.array([len(document) for document in some], dtype=np.uint32))
        written = writer.finish()
        tokenizer = TokenizerMeta(
            "tokenizer.json", hashlib.sha256(data).hexdigest(), int(np.iinfo(dtype).max) + 1, None, None, None
        )
        meta = CorpusMeta(
            format=1,
            store=store,
            dtype=dtype,
            documents=written.documents,
            tokens=written.tokens,
            digest=written.digest,
            tokenizer=tokenizer,
            shards=written.shards,
            bounds=written.bounds,
            lengths=written.lengths,
            inputs=(),
            options={},
            quarantine=None,
        )
        output.commit(meta)
    return meta


def spans(*runs: tuple[int, int, int]) -> Spans:
    """Spans from (start, length, at)."""
    columns = np.array(runs, dtype=np.int64).reshape(-1, 3).T
    return Spans(*(np.ascontiguousarray(column) for column in columns))


def spans_end_to_end(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Spans:
    return Spans(starts, lengths, np.cumsum(lengths) - lengths)


FLAT = np.array([token for document in DOCUMENTS for token in document], dtype=np.int64)


class CorpusContract(ABC):
    """Of CorpusReader. `corpus` opens a store of DOCUMENTS."""

    @classmethod
    @abstractmethod
    def open(cls, folder: Path) -> CorpusReader: ...

    @pytest.fixture(scope="class")
    @classmethod
    def corpus(cls, tmp_path_factory: pytest.TempPathFactory) -> CorpusReader:
        return cls.open(tmp_path_factory.mktemp("corpus"))

    def take(self, corpus: CorpusReader, wanted: Spans, out: NDArray[np.int64]) -> None:
        asyncio.run(corpus.read(wanted, out))

    def test_tells_what_it_holds(self, corpus: CorpusReader) -> None:
        assert isinstance(corpus, CorpusReader)
        assert len(corpus) == corpus.meta.documents == len(DOCUMENTS)
        assert corpus.meta.tokens == FLAT.size
        assert corpus.lengths.tolist() == [len(document) for document in DOCUMENTS]
        assert corpus.bounds.dtype == np.int64
        assert corpus.bounds.tolist() == [0, *np.cumsum(corpus.lengths).tolist()]

    def test_reads_every_run_of_one_length(self, corpus: CorpusReader) -> None:
        for length in (1, 2, 5, 16, 48, FLAT.size):
            starts = np.arange(FLAT.size - length + 1)
            out = np.full(starts.size * length, -1)
            self.take(corpus, spans_end_to_end(starts, np.full(starts.size, length)), out)
            assert (out.reshape(-1, length) == np.lib.stride_tricks.sliding_window_view(FLAT, length)).all()

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_reads_any_runs(self, corpus: CorpusReader, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, 80))
        runs = data.draw(
            st.lists(st.tuples(*[st.integers(0, FLAT.size)] * 2), min_size=count, max_size=count)
        )
        starts = np.array([min(run) for run in runs], dtype=np.int64)
        lengths = np.array([max(run) for run in runs], dtype=np.int64) - starts
        gap = data.draw(st.integers(0, 2))
        at = np.cumsum(lengths + gap) - lengths
        out = np.full(int((lengths + gap).sum()), -1)
        expected = out.copy()
        for start, length, place in zip(starts, lengths, at, strict=True):
            expected[place : place + length] = FLAT[start : start + length]
        self.take(corpus, Spans(starts, lengths, at), out)
        assert out.tolist() == expected.tolist()

    def test_places_that_no_run_covers_keep_what_they_hold(self, corpus: CorpusReader) -> None:
        out = np.full(6, -5)
        self.take(corpus, spans((1, 2, 3)), out)
        assert out.tolist() == [-5, -5, -5, 1, 2, -5]

    @pytest.mark.parametrize("step", [5, -4])
    def test_runs_of_one_length_may_lie_apart_or_backwards(self, corpus: CorpusReader, step: int) -> None:
        starts = np.arange(60)
        at = starts * step if step > 0 else (starts[::-1] * -step).copy()
        out = np.full(300, -1)
        self.take(corpus, Spans(starts, np.full(60, 4), at), out)
        for start, place in zip(starts, at, strict=True):
            assert out[place : place + 4].tolist() == FLAT[start : start + 4].tolist()
        assert (out == -1).sum() == 60

    def test_nothing_is_read_for_no_runs_and_empty_ones(self, corpus: CorpusReader) -> None:
        out = np.empty(0, dtype=np.int64)
        self.take(corpus, spans(), out)
        self.take(corpus, spans((FLAT.size, 0, 0), (0, 0, 0)), out)

    @pytest.mark.parametrize("runs", [1, 100])
    def test_refuses_a_run_beyond_the_corpus_or_the_buffer(self, corpus: CorpusReader, runs: int) -> None:
        out = np.zeros(200, dtype=np.int64)
        with pytest.raises(SpanError, match=f"token {FLAT.size + 1}, the corpus has {FLAT.size}"):
            self.take(corpus, spans(*[(FLAT.size - 1, 2, 0)] * runs), out)
        with pytest.raises(SpanError, match="201 in a buffer of 200"):
            self.take(corpus, spans(*[(0, 2, 199)] * runs), out)

    def test_refuses_a_buffer_that_is_not_flat_int64(self, corpus: CorpusReader) -> None:
        with pytest.raises(SpanError, match="int32"):
            self.take(corpus, spans((0, 1, 0)), np.zeros(4, dtype=np.int32))  # type: ignore[arg-type]  # the point
        with pytest.raises(SpanError, match=r"\(2, 2\)"):
            self.take(corpus, spans((0, 1, 0)), np.zeros((2, 2), dtype=np.int64))

    def test_nothing_is_read_after_close(self, tmp_path: Path) -> None:
        with self.open(tmp_path / "corpus") as corpus:
            pass
        corpus.close()
        with pytest.raises(CorpusClosed):
            self.take(corpus, spans((0, 1, 0)), np.zeros(1, dtype=np.int64))


class LocalCorpusContract(CorpusContract):
    """Of LocalCorpus."""

    @classmethod
    @abstractmethod
    def open(cls, folder: Path) -> LocalCorpus: ...

    @pytest.fixture(scope="class")
    @classmethod
    def local(cls, tmp_path_factory: pytest.TempPathFactory) -> LocalCorpus:
        return cls.open(tmp_path_factory.mktemp("local"))

    def test_gather_is_read(self, local: LocalCorpus) -> None:
        assert isinstance(local, LocalCorpus)
        out = np.empty(FLAT.size, dtype=np.int64)
        local.gather(spans((0, FLAT.size, 0)), out)
        assert out.tolist() == FLAT.tolist()

    def test_gathers_from_several_threads(self, local: LocalCorpus) -> None:
        def one(start: int) -> list[int]:
            out = np.empty(50 * 20, dtype=np.int64)
            local.gather(spans_end_to_end(np.full(50, start), np.full(50, 20)), out)
            return out[-20:].tolist()

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(one, range(50))) == [FLAT[s : s + 20].tolist() for s in range(50)]

    def test_views_each_document_without_a_copy(self, local: LocalCorpus) -> None:
        for number, document in enumerate(DOCUMENTS):
            assert local.view(number, 0, len(document)).tolist() == document
            assert (
                local.view(number, len(document) // 2, len(document)).tolist()
                == document[len(document) // 2 :]
            )
        view = local.view(4, 0, 40)
        assert not view.flags.writeable
        assert not view.flags.owndata
        assert view.dtype == np.dtype(local.meta.dtype)

    def test_refuses_a_view_beyond_the_document(self, local: LocalCorpus) -> None:
        for number, start, stop in ((0, 0, 2), (0, -1, 1), (2, 2, 1), (len(DOCUMENTS), 0, 0), (-1, 0, 0)):
            with pytest.raises(SpanError):
                local.view(number, start, stop)

    def test_verifies(self, local: LocalCorpus) -> None:
        local.verify()

    def test_a_view_outlives_close_and_nothing_else_does(self, tmp_path: Path) -> None:
        corpus = self.open(tmp_path / "corpus")
        view = corpus.view(2, 0, 3)
        corpus.close()
        assert view.tolist() == [1, 2, 3]
        with pytest.raises(CorpusClosed):
            corpus.view(2, 0, 3)
        with pytest.raises(CorpusClosed):
            corpus.gather(spans((0, 1, 0)), np.zeros(1, dtype=np.int64))
        with pytest.raises(CorpusClosed):
            corpus.verify()


class StoreContract(ABC):
    """Of Store: what is written is the same, wherever the writer was killed and taken up again."""

    @property
    @abstractmethod
    def store(self) -> Store: ...

    def writer(self, folder: Path, at: State | None = None) -> CorpusWriter:
        """One whose batches and shards end often, where the store has such."""
        return self.store.writer(folder, "uint16", at)

    def append(self, writer: CorpusWriter, documents: Sequence[Sequence[int]]) -> None:
        ids = np.array([token for document in documents for token in document], dtype=np.uint16)
        writer.append(ids, np.array([len(document) for document in documents], dtype=np.uint32))

    def content(self, folder: Path) -> object:
        """What must be equal for equal documents."""
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".arrow"}

    def written(self, folder: Path) -> tuple[object, str]:
        folder.mkdir()
        with self.writer(folder) as writer:
            self.append(writer, DOCUMENTS * 3)
            digest = writer.finish().digest
        return self.content(folder), digest

    @pytest.mark.parametrize("saved_at", range(1, 3 * len(DOCUMENTS), 2))
    def test_goes_on_from_where_it_was_saved(self, tmp_path: Path, saved_at: int) -> None:
        expected = self.written(tmp_path / "whole")
        folder = tmp_path / "parts"
        folder.mkdir()
        with self.writer(folder) as writer:
            for number, document in enumerate((DOCUMENTS * 3)[: saved_at + 4]):
                self.append(writer, [document])
                # Twice, so that the second save adds to what the first has written.
                if number + 1 in (max(1, saved_at - 2), saved_at):
                    writer.save({"documents": number + 1})
            # What came after the save is not in it, though some of it may be on the disk.
        saved = self.store.saved(folder)
        assert saved is not None
        assert saved.progress == {"documents": saved_at}
        with self.writer(folder, saved.mark) as writer:
            assert writer.documents == saved_at
            assert writer.tokens == sum(map(len, (DOCUMENTS * 3)[:saved_at]))
            self.append(writer, (DOCUMENTS * 3)[saved_at:])
            digest = writer.finish().digest
        assert (self.content(folder), digest) == expected

    def test_marks_are_plain_data_that_any_later_moment_can_return_to(self, tmp_path: Path) -> None:
        expected = self.written(tmp_path / "whole")
        folder = tmp_path / "marks"
        folder.mkdir()
        with self.writer(folder) as writer:
            self.append(writer, DOCUMENTS[:3])
            mark = json.loads(json.dumps(writer.mark()))
            self.append(writer, DOCUMENTS[3:5])
        with self.writer(folder, mark) as writer:
            self.append(writer, (DOCUMENTS * 3)[3:])
            assert (writer.finish().digest) == expected[1]
        assert self.content(folder) == expected[0]

    def test_nothing_saved_is_nothing_to_go_on_from(self, tmp_path: Path) -> None:
        assert self.store.saved(tmp_path) is None
        with self.writer(tmp_path) as writer:
            self.append(writer, DOCUMENTS)
        assert self.store.saved(tmp_path) is None

    def test_a_mark_of_something_else_is_refused(self, tmp_path: Path) -> None:
        with self.writer(tmp_path) as writer:
            self.append(writer, DOCUMENTS)
            mark = writer.mark()
        other = tmp_path / "other"
        other.mkdir()
        for bad in (mark, {}, {"documents": "x"}):
            with pytest.raises(NotResumable), self.writer(other, bad):
                pass

    def test_appends_beside_those_who_read(self, tmp_path: Path) -> None:
        meta = write_corpus(tmp_path / "a", store=self.store.name)
        both = write_corpus(tmp_path / "b", [*DOCUMENTS, [1, 2], [3]], store=self.store.name)
        before = {path.name for path in (tmp_path / "a").iterdir()}
        with open_corpus(tmp_path / "a") as corpus:
            lengths = np.array(corpus.lengths)
        del corpus
        with self.store.appending(tmp_path / "a", meta, lengths) as writer:
            assert (writer.documents, writer.tokens) == (meta.documents, meta.tokens)
            self.append(writer, [[1, 2], [3]])
            written = writer.finish()
        assert (written.documents, written.tokens, written.digest) == (
            both.documents,
            both.tokens,
            both.digest,
        )
        with open_corpus(tmp_path / "a") as corpus:
            corpus.verify()  # As it was: corpus.json has not been replaced.
            assert len(corpus) == meta.documents
        assert before < {path.name for path in (tmp_path / "a").iterdir()}
