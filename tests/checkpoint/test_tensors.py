from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from checkpoint.strict import Malformed
from checkpoint.tensors import (
    ITEM_BYTES,
    Piece,
    TensorSpec,
    check_coverage,
    chunk_count,
    chunk_length,
    whole,
)
from tests.checkpoint.states import dtype_of


@pytest.mark.parametrize("name", ITEM_BYTES)
def test_element_types_have_torchs_sizes(name: str) -> None:
    assert torch.empty(0, dtype=dtype_of(name)).element_size() == ITEM_BYTES[name]


@given(st.integers(0, 1000), st.integers(1, 64))
def test_chunks_add_up(size: int, chunk_bytes: int) -> None:
    lengths = [chunk_length(size, chunk_bytes, index) for index in range(chunk_count(size, chunk_bytes))]
    assert sum(lengths) == size
    assert all(length == chunk_bytes for length in lengths[:-1])
    assert all(0 < length <= chunk_bytes for length in lengths)


boxes = st.tuples(st.tuples(*[st.integers(0, 3)] * 2), st.tuples(*[st.integers(0, 4)] * 2))


@given(st.lists(boxes, min_size=1, max_size=4))
@example([((0, 0), (3, 3)), ((0, 2), (3, 1))])
@example([((0, 0), (3, 2)), ((0, 2), (3, 2))])
def test_coverage_agrees_with_counting_elements(found: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    spec = TensorSpec("int8", (3, 4))
    pieces = [Piece(offset, shape) for offset, shape in found]
    counts = torch.zeros(8, 9, dtype=torch.int64)
    inside = True
    for (row, column), (rows, columns) in found:
        counts[row : row + rows, column : column + columns] += 1
        inside = inside and row + rows <= 3 and column + columns <= 4
    covered = inside and bool((counts[:3, :4] == 1).all())
    if covered:
        check_coverage(spec, pieces)
    else:
        with pytest.raises(Malformed):
            check_coverage(spec, pieces)


def test_a_grid_of_pieces_covers() -> None:
    pieces = [Piece((row, column), (2, 2)) for row, column in itertools.product((0, 2), (0, 2, 4))]
    check_coverage(TensorSpec("int8", (4, 6)), pieces)


def test_a_scalar_and_an_empty_tensor_are_one_piece() -> None:
    for shape in ((), (0,), (3, 0)):
        spec = TensorSpec("float32", shape)
        check_coverage(spec, [whole(spec)])


@pytest.mark.parametrize("shape", [(-1,), (2**60, 2**60), (1,) * 65, (0, 2**60)])
def test_shapes_that_no_tensor_has_are_malformed(shape: tuple[int, ...]) -> None:
    with pytest.raises(Malformed):
        TensorSpec("float32", shape)


def test_an_unknown_element_type_is_malformed() -> None:
    with pytest.raises(Malformed, match="'qint8'"):
        TensorSpec("qint8", ())
