"""Every packing against the definition, written out token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.corpus import open_corpus
from stages.packing import METHODS, Method, Packing, Planned, TokenAccount, Wrapped, packed
from stages.packing.best_fit import best_fit, filled_up
from tests.contracts.packing import LENGTHS, SEQ_LEN, PackingContract, bounds_of, rows_of
from tests.corpora import random_documents, write_corpus


class TestWrapped(PackingContract):
    def make(self, lengths: list[int], seq_len: int) -> Wrapped:
        return Wrapped(sum(lengths), seq_len)

    @given(LENGTHS, SEQ_LEN)
    def test_windows_are_disjoint_and_cover_all_but_the_tail(self, lengths: list[int], seq_len: int) -> None:
        packing = self.make(lengths, seq_len)
        rows = rows_of(packing, list(range(packing.samples)))
        assert [token for row in rows for token in row] == list(range(packing.account.kept))
        assert packing.account.dropped < seq_len
        assert packing.account.padded == 0


class TestBestFit(PackingContract):
    def make(self, lengths: list[int], seq_len: int) -> Packing:
        rows = best_fit(np.array(lengths, np.uint32), bounds_of(lengths), seq_len)
        return Planned("bfd", rows, sum(lengths), seq_len)

    @given(LENGTHS, SEQ_LEN)
    def test_documents_that_fit_are_whole(self, lengths: list[int], seq_len: int) -> None:
        packing = self.make(lengths, seq_len)
        where = {
            token: (row, place)
            for row, tokens in enumerate(rows_of(packing, list(range(packing.samples))))
            for place, token in enumerate(tokens)
        }
        for first, length in zip(bounds_of(lengths)[:-1].tolist(), lengths, strict=True):
            for at in range(length):
                row, place = where[first + at]
                if at % seq_len:
                    assert where[first + at - 1] == (row, place - 1)


class TestFilledUp(PackingContract):
    def make(self, lengths: list[int], seq_len: int) -> Packing:
        rows = filled_up(best_fit(np.array(lengths, np.uint32), bounds_of(lengths), seq_len), seq_len)
        return Planned("bfd_split", rows, sum(lengths), seq_len)

    @given(LENGTHS, SEQ_LEN)
    def test_less_than_a_row_is_padding(self, lengths: list[int], seq_len: int) -> None:
        packing = self.make(lengths, seq_len)
        assert packing.account.padded < seq_len
        assert packing.samples == -(-sum(lengths) // seq_len)

    @given(LENGTHS, SEQ_LEN)
    def test_nothing_is_split_where_no_row_is_saved(self, lengths: list[int], seq_len: int) -> None:
        whole = best_fit(np.array(lengths, np.uint32), bounds_of(lengths), seq_len)
        if len(whole) == -(-sum(lengths) // seq_len):
            assert filled_up(whole, seq_len) is whole


@pytest.mark.parametrize(
    ("method", "account", "samples"),
    [
        # Three full windows; the tenth token is counted as dropped.
        ("wrapped", TokenAccount(tokens=10, kept=9, dropped=1, padded=0), 3),
        # 4 is cut into 3 and 1: [3], [3], [2 1], [1 and two of padding].
        ("bfd", TokenAccount(tokens=10, kept=10, dropped=0, padded=2), 4),
        # Four rows are the fewest there can be.
        ("bfd_split", TokenAccount(tokens=10, kept=10, dropped=0, padded=2), 4),
    ],
)
def test_no_token_vanishes(method: Method, account: TokenAccount, samples: int, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", random_documents((4, 2, 3, 1)))
    with open_corpus(tmp_path / "corpus") as corpus:
        packing = packed(corpus, method, 3)
    assert (packing.name, packing.account, packing.samples) == (method, account, samples)


def test_documents_are_split_to_save_rows() -> None:
    lengths = np.array([3, 3, 3, 3], np.uint32)
    whole = best_fit(lengths, bounds_of(lengths.tolist()), 4)
    assert (len(whole), whole.length.tolist()) == (4, [3, 3, 3, 3])
    split = filled_up(whole, 4)
    assert (len(split), split.length.tolist()) == (3, [3, 1, 3, 1, 3, 1])
    assert split.start.tolist() == [3, 0, 6, 1, 9, 2]


@given(st.integers(0, 10**6), st.integers(2, 5000))
def test_every_token_of_many_is_accounted_for(tokens: int, seq_len: int) -> None:
    account = Wrapped(tokens, seq_len).account
    assert account.kept + account.dropped == tokens


def test_an_account_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(ValueError, match="kept 9 \\+ dropped 0 is not tokens 10"):
        TokenAccount(tokens=10, kept=9, dropped=0, padded=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seq_len", [1, 1 << 31])
def test_a_row_that_makes_no_sense_is_refused(method: Method, seq_len: int, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", random_documents((4,)))
    with open_corpus(tmp_path / "corpus") as corpus, pytest.raises(ValueError, match="seq_len must be >= 2"):
        packed(corpus, method, seq_len)
