"""Labels, positions and document lengths against the definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages import collate


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    rows, length = draw(st.integers(1, 4)), draw(st.integers(2, 9))
    ids = draw(st.lists(st.integers(0, 3), min_size=rows * length, max_size=rows * length))
    inner = draw(st.sets(st.integers(0, rows * length - 1)))
    starts = sorted(inner | {row * length for row in range(rows)})
    return np.array(ids, np.int64).reshape(rows, length), np.array(starts, np.int64)


@given(batches())
def test_labels_are_the_ids_but_for_first_tokens(batch: tuple[np.ndarray, np.ndarray]) -> None:
    ids, starts = batch
    labels = np.empty_like(ids)
    collate.labels(ids, starts, out=labels)
    for place, (token, label) in enumerate(zip(ids.reshape(-1), labels.reshape(-1), strict=True)):
        assert label == (collate.IGNORE if place in starts else token)


@given(batches())
def test_positions_restart_at_each_document(batch: tuple[np.ndarray, np.ndarray]) -> None:
    ids, starts = batch
    positions = np.empty_like(ids)
    collate.position_ids(starts, out=positions)
    expected, position = [], 0
    for place in range(ids.size):
        position = 0 if place in starts else position + 1
        expected.append(position)
    assert positions.reshape(-1).tolist() == expected


@given(batches())
def test_document_lengths_add_up(batch: tuple[np.ndarray, np.ndarray]) -> None:
    """Each row as a batch of its own, and all rows as one."""
    ids, starts = batch
    rows, length = ids.shape
    (whole,) = collate.cu_seqlens(starts, 1, ids.size)
    assert whole.dtype == np.int32
    assert whole.tolist() == [*starts.tolist(), ids.size]
    for row, cuts in enumerate(collate.cu_seqlens(starts, rows, length)):
        inside = [s - row * length for s in starts.tolist() if row * length <= s < (row + 1) * length]
        assert cuts.tolist() == [*inside, length]


def test_padding_is_what_lies_behind_the_tokens() -> None:
    assert collate.padding(np.array([2, 3]), 3).tolist() == [[False, False, True], [False, False, False]]


def test_masking_is_by_place_never_by_value() -> None:
    # Every id is the same, as with a pad token that is also the end token: only the first place is masked.
    ids = np.full((1, 4), 7, np.int64)
    labels = np.empty_like(ids)
    collate.labels(ids, np.array([0]), out=labels)
    assert labels.tolist() == [[-100, 7, 7, 7]]


def test_unknown_columns_are_named() -> None:
    assert collate.unknown_columns(["input_ids", "lables"]) == ["lables"]
