"""Bringing batches to the device: order, lookahead, and on a GPU the ring of pinned slots."""

from __future__ import annotations

import json
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
from stages.transfer import Lookahead, PinnedSlot, ToCuda, ToNumpy
from tests.corpora import random_documents, write_corpus

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCorpus]:
    folder: Path = tmp_path_factory.mktemp("transfer") / "corpus"
    write_corpus(folder, random_documents([500, 3, 77, 1200]))
    with open_corpus(folder) as opened:
        yield opened


class Counting(ToNumpy):
    """A transfer that counts what it hands over."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.handed = 0

    def arrived(self) -> None:
        self.handed += 1


@given(st.lists(st.integers()), st.integers(0, 4))
def test_lookahead_changes_no_element_and_keeps_no_more_than_it_says(values: list[int], ahead: int) -> None:
    sent: list[int] = []

    def sending() -> Iterator[int]:
        for value in values:
            sent.append(value)
            yield value

    transfer = Counting(ahead)
    for handed, value in enumerate(Lookahead(sending(), transfer), start=1):
        assert value == values[handed - 1]
        assert transfer.handed == handed
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


def _gpu_intervals(trace: Path, category: str) -> list[tuple[float, float]]:
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and e.get("cat") == category]


@pytest.mark.gpu
@needs_gpu
def test_a_copy_overlaps_a_kernel(tmp_path: Path) -> None:
    """In the profiler's trace some copy to the device lies beside a matrix product of the batch before."""
    device = torch.device("cuda")
    ring = ToCuda(device, slots=2)
    matrix = torch.randn(8192, 8192, device=device)
    torch.mm(matrix, matrix)
    torch.cuda.synchronize()

    def sending() -> Iterator[dict[str, torch.Tensor]]:
        for index in range(6):
            slot = ring.take(index)
            array = slot.int64("input_ids", (4 << 20,))
            array[:] = index
            yield ring.send({"input_ids": array}, slot, True)

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in Lookahead(sending(), ring):
            for _ in range(4):
                torch.mm(matrix, matrix)
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    copies = _gpu_intervals(tmp_path / "trace.json", "gpu_memcpy")
    kernels = _gpu_intervals(tmp_path / "trace.json", "kernel")
    assert copies
    assert any(a < d and c < b for a, b in copies for c, d in kernels)


@pytest.mark.gpu
@needs_gpu
def test_no_slot_is_filled_before_its_copy_is_done() -> None:
    """The copy waits behind a long kernel on the side stream: taking the slot again waits for it too."""
    device = torch.device("cuda")
    ring = ToCuda(device, slots=1)
    slot = ring.take(0)
    assert isinstance(slot, PinnedSlot)
    array = slot.int64("input_ids", (1 << 20,))
    array[:] = 7
    with torch.cuda.stream(ring._stream):
        torch.cuda._sleep(200_000_000)
    batch = ring.send({"input_ids": array}, slot, True)
    assert slot.copied is not None
    assert not slot.copied.query()
    again = ring.take(1)
    assert slot.copied.query()
    again.int64("input_ids", (1 << 20,))[:] = 9
    ring.arrived()
    assert batch["input_ids"].eq(7).all()


@pytest.mark.gpu
@needs_gpu
def test_the_pool_of_pinned_memory_never_grows(corpus: LocalCorpus) -> None:
    """After the first round through the ring no pinned block is added, whatever is read."""
    feed = tensor_feed(corpus, FeedSpec(seq_len=16, batch_size=4, seed=3), "cuda")
    batches = iter(feed)
    for _ in range(2000):
        next(batches)
    before = torch.cuda.host_memory_stats()["allocations.current"]
    for _ in range(2000):
        next(batches)
    assert torch.cuda.host_memory_stats()["allocations.current"] == before
