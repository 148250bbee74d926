"""Bringing batches to the device: order, lookahead, and on a GPU the ring of pinned slots."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.corpus import LocalCorpus, open_corpus
from stages.feed import FeedSpec, numpy_feed, tensor_feed
from stages.transfer import Lookahead, ToCuda
from tests.corpora import random_documents, write_corpus

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCorpus]:
    folder: Path = tmp_path_factory.mktemp("transfer") / "corpus"
    write_corpus(folder, random_documents([500, 3, 77, 1200]))
    with open_corpus(folder) as opened:
        yield opened


@given(st.lists(st.integers()), st.integers(0, 4))
def test_lookahead_changes_no_element_and_keeps_no_more_than_it_says(values: list[int], ahead: int) -> None:
    sent: list[int] = []

    def sending() -> Iterator[int]:
        for value in values:
            sent.append(value)
            yield value

    for handed, value in enumerate(Lookahead(sending(), ahead), start=1):
        assert value == values[handed - 1]
        assert len(sent) <= handed + ahead
    assert sent == values


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_gets_the_batches_that_a_cpu_gets(corpus: LocalCorpus) -> None:
    columns = ("input_ids", "labels", "position_ids", "cu_seqlens", "sample_ids")
    spec = FeedSpec(seq_len=16, batch_size=4, seed=3, end=4000, columns=columns)
    expected = list(numpy_feed(corpus, spec))
    # Kept until the end: a slot that is filled again must not reach a batch that was handed over.
    got = list(tensor_feed(corpus, spec, "cuda"))
    assert len(got) == len(expected)
    for arrays, tensors in zip(expected, got, strict=True):
        for name, array in arrays.items():
            assert tensors[name].is_cuda
            assert np.array_equal(tensors[name].cpu().numpy(), array)


@pytest.mark.gpu
@needs_gpu
def test_a_slot_waits_for_its_blocks_turn_and_its_memory_is_used_again() -> None:
    ring = ToCuda(torch.device("cuda"), slots=2)
    first, second = ring.take(0), ring.take(1)
    taken: list[object] = []
    waiting = threading.Thread(target=lambda: taken.append(ring.take(2)))
    waiting.start()
    array = first.int64("input_ids", (2, 3))
    array[:] = 7
    ring.send({"input_ids": array}, first, True)
    waiting.join(10)
    assert taken == [first]
    assert second is not first
    assert first.int64("input_ids", (2, 3)).ctypes.data == array.ctypes.data


@pytest.mark.gpu
@needs_gpu
def test_closing_releases_whoever_waits_for_a_slot() -> None:
    ring = ToCuda(torch.device("cuda"), slots=1)
    ring.take(0)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            ring.take(1)
        except RuntimeError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ring.close()
    waiting.join(10)
    assert len(raised) == 1
