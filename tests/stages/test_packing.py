"""Packing against the definition, written out token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.packing import TokenAccount, Wrapped

LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=20)


def bounds_of(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@given(LENGTHS, st.integers(2, 7))
def test_windows_are_disjoint_and_cover_all_but_the_tail(lengths: list[int], seq_len: int) -> None:
    packing = Wrapped(sum(lengths), seq_len)
    spans = packing.spans(np.arange(packing.samples, dtype=np.int64))
    covered = [t for s, n in zip(spans.start, spans.length, strict=True) for t in range(s, s + n)]
    assert covered == list(range(packing.account.kept))
    assert packing.account.dropped < seq_len


@given(LENGTHS, st.integers(2, 7), st.data())
def test_starts_are_where_documents_begin(lengths: list[int], seq_len: int, data: st.DataObject) -> None:
    packing = Wrapped(sum(lengths), seq_len)
    if packing.samples == 0:
        return
    samples = data.draw(st.lists(st.integers(0, packing.samples - 1), min_size=1, max_size=6))
    bounds = bounds_of(lengths)
    expected = []
    for row, sample in enumerate(samples):
        for t in range(seq_len):
            if t == 0 or sample * seq_len + t in bounds[:-1].tolist():
                expected.append(row * seq_len + t)
    assert packing.starts(np.array(samples, np.int64), bounds).tolist() == expected


@given(st.integers(0, 10**6), st.integers(2, 5000))
def test_every_token_is_accounted_for(tokens: int, seq_len: int) -> None:
    account = Wrapped(tokens, seq_len).account
    assert account.kept + account.dropped == tokens
    assert account.padded == 0


def test_no_token_vanishes() -> None:
    # Documents of 4, 2, 3 and 1 tokens at seq_len 3: three full windows; the tenth token is counted as dropped.
    assert Wrapped(4 + 2 + 3 + 1, 3).account == TokenAccount(tokens=10, kept=9, dropped=1, padded=0)


def test_a_window_of_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="seq_len must be >= 2"):
        Wrapped(10, 1)
