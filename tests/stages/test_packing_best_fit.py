"""Best-fit decreasing against the naive algorithm, its pinned plans, its speed and its memory."""

from __future__ import annotations

import time
import tracemalloc
from bisect import bisect_left, insort

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.packing.best_fit import Rows, best_fit, filled_up
from tests.contracts.packing import bounds_of


def naive_rows(lengths: list[int], seq_len: int) -> int:
    """Piece by piece, each into the fullest row that has room: O(n x rows)."""
    pieces = [piece for n in lengths for piece in [seq_len] * (n // seq_len) + [n % seq_len] if piece]
    rooms: list[int] = []
    rows = 0
    for piece in sorted(pieces, reverse=True):
        at = bisect_left(rooms, piece)
        if at < len(rooms):
            room = rooms.pop(at)
        else:
            rows, room = rows + 1, seq_len
        if room > piece:
            insort(rooms, room - piece)
    return rows


def planned(lengths: list[int], seq_len: int) -> Rows:
    return best_fit(np.array(lengths, np.uint32), bounds_of(lengths), seq_len)


def lognormal(documents: int, seed: int) -> NDArray[np.uint32]:
    drawn = np.random.default_rng(seed).lognormal(6, 1.2, documents)
    return np.clip(drawn, 1, 1_000_000).astype(np.uint32)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 100), max_size=80), st.integers(2, 40))
def test_as_many_rows_as_the_naive_algorithm(lengths: list[int], seq_len: int) -> None:
    assert len(planned(lengths, seq_len)) == naive_rows(lengths, seq_len)


@pytest.mark.parametrize("seq_len", [512, 2048, 100_000])
def test_as_many_rows_as_the_naive_algorithm_on_many_documents(seq_len: int) -> None:
    lengths = lognormal(30_000, seed=seq_len).tolist()
    assert len(planned(lengths, seq_len)) == naive_rows(lengths, seq_len)


def test_plans_are_pinned() -> None:
    """A change here breaks the resume of every run on such a packing: raise ALGORITHM with it."""
    rows = planned([5, 9, 2, 2, 7, 3, 3, 1, 0, 16, 4], 8)
    assert rows.offset.tolist() == [0, 2, 4, 7, 9, 10, 11, 12]
    assert rows.start.tolist() == [18, 31, 0, 25, 48, 28, 13, 14, 16, 5, 32, 40]
    assert rows.length.tolist() == [7, 1, 5, 3, 4, 3, 1, 2, 2, 8, 8, 8]


def test_nothing_to_pack() -> None:
    for rows in (planned([], 8), planned([0, 0], 8), filled_up(planned([], 8), 8)):
        assert (len(rows), rows.start.size, rows.length.size) == (0, 0, 0)


def test_memory_grows_by_less_than_50_bytes_a_document() -> None:
    lengths = lognormal(300_000, seed=1)
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    tracemalloc.start()
    try:
        best_fit(lengths, bounds, 2048)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / lengths.size < 50


@pytest.mark.slow
def test_ten_million_documents() -> None:
    """At two million documents a second of the processor's time, with the naive algorithm's number of rows."""
    lengths = lognormal(10_000_000, seed=0)
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    began = time.process_time()
    rows = best_fit(lengths, bounds, 2048)
    assert lengths.size / (time.process_time() - began) > 2e6
    assert len(rows) == naive_rows(lengths.tolist(), 2048)
    split = filled_up(rows, 2048)
    assert len(split) == -(-int(bounds[-1]) // 2048)
    assert int(split.length.sum()) == int(bounds[-1])
