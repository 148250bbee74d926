"""Which documents have come before: like a set, and a split that does not move."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus.seen import Seen, held_out, text_hashes

numbers = st.integers(0, 2**64 - 1)
few = st.tuples(st.sampled_from([0, 1, 1 << 10, 1 << 60]), st.integers(0, 3))
"""Many that are equal, or want the same slot."""


@settings(max_examples=100, deadline=None)
@given(batches=st.lists(st.lists(st.one_of(few, st.tuples(numbers, numbers)), max_size=40), max_size=8))
def test_is_a_set(batches: list[list[tuple[int, int]]]) -> None:
    seen, expected = Seen(), set[tuple[int, int]]()
    for batch in batches:
        # The one pair that stands for another one.
        plain = [(0, 1) if pair == (0, 0) else pair for pair in batch]
        wanted = []
        for pair in plain:
            wanted.append(pair not in expected)
            expected.add(pair)
        assert seen.first(np.array(batch, dtype=np.uint64).reshape(-1, 2)).tolist() == wanted
    assert len(seen) == len(expected)


def test_grows() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64, (100_000, 2), dtype=np.uint64)
    seen = Seen()
    for at in range(0, len(hashes), 3000):
        assert seen.first(hashes[at : at + 3000]).all()
    assert not seen.first(hashes[::-1]).any()
    assert len(seen) == len(hashes)


def test_a_split_takes_its_share_and_never_moves() -> None:
    hashes = text_hashes(tuple(str(number) for number in range(20_000)))
    aside = held_out(hashes, 0.01)
    assert 150 < aside.sum() < 250
    assert (held_out(hashes[::-1], 0.01) == aside[::-1]).all()
    assert (held_out(hashes, 0.02) >= aside).all()
    assert not held_out(hashes, 0.0).any()
