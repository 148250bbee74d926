"""What every packing must do: subclass, say how to make one, and inherit the tests."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.packing import Packing

LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=30)
SEQ_LEN = st.integers(2, 9)


def bounds_of(lengths: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def rows_of(packing: Packing, samples: list[int]) -> list[list[int]]:
    """The token addresses of each of these samples, read off its spans."""
    spans = packing.spans(np.array(samples, np.int64))
    flat = np.full(len(samples) * packing.seq_len, -1)
    for start, length, at in zip(spans.start, spans.length, spans.at, strict=True):
        assert (flat[at : at + length] == -1).all(), "two runs share a position"
        flat[at : at + length] = np.arange(start, start + length)
    rows: list[list[int]] = flat.reshape(len(samples), packing.seq_len).tolist()
    return rows


class PackingContract:
    """`make` packs documents of these lengths."""

    def make(self, lengths: list[int], seq_len: int) -> Packing:
        raise NotImplementedError

    # hypothesis wants a test of its own for each class: hence functions made in each call.

    def test_each_token_is_in_one_place_or_counted_as_dropped(self) -> None:
        @given(LENGTHS, SEQ_LEN)
        def holds(lengths: list[int], seq_len: int) -> None:
            packing = self.make(lengths, seq_len)
            account = packing.account
            rows = rows_of(packing, list(range(packing.samples)))
            seen = sorted(token for row in rows for token in row if token >= 0)
            assert len(seen) == len(set(seen)) == account.kept
            assert set(seen) <= set(range(sum(lengths)))
            assert account.tokens == sum(lengths) == account.kept + account.dropped
            assert account.padded == sum(row.count(-1) for row in rows)

        holds()

    def test_padding_is_at_the_end_of_a_row(self) -> None:
        @given(LENGTHS, SEQ_LEN, st.data())
        def holds(lengths: list[int], seq_len: int, data: st.DataObject) -> None:
            packing, samples = self._drawn(lengths, seq_len, data)
            filled = packing.filled(np.array(samples, np.int64)).tolist()
            for row, tokens in zip(rows_of(packing, samples), filled, strict=True):
                assert 1 <= tokens <= seq_len
                assert [token >= 0 for token in row] == [place < tokens for place in range(seq_len)]

        holds()

    def test_starts_are_where_a_document_or_a_piece_begins(self) -> None:
        @given(LENGTHS, SEQ_LEN, st.data())
        def holds(lengths: list[int], seq_len: int, data: st.DataObject) -> None:
            packing, samples = self._drawn(lengths, seq_len, data)
            bounds = bounds_of(lengths)
            begins = set(bounds[:-1].tolist())
            expected = []
            for number, row in enumerate(rows_of(packing, samples)):
                for place, token in enumerate(row):
                    follows = place > 0 and token == row[place - 1] + (token >= 0)
                    if not follows or token in begins:
                        expected.append(number * seq_len + place)
            assert packing.starts(np.array(samples, np.int64), bounds).tolist() == expected

        holds()

    def _drawn(self, lengths: list[int], seq_len: int, data: st.DataObject) -> tuple[Packing, list[int]]:
        packing = self.make(lengths, seq_len)
        if packing.samples == 0:
            return packing, []
        samples = st.lists(st.integers(0, packing.samples - 1), max_size=6)
        return packing, data.draw(samples)
