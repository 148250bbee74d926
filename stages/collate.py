"""Collate: a flat run of tokens becomes the arrays that models of the ecosystem take.

Labels follow Hugging Face: unshifted (the model shifts), -100 where nothing is to be learned. What is masked is
masked by place and never by value, so a pad token that is also the end token stays learnable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

IGNORE = -100
"""The label of a position that is not trained: the default of `torch.nn.functional.cross_entropy`."""

Column: TypeAlias = Literal[
    "input_ids", "labels", "position_ids", "attention_mask", "cu_seqlens", "sample_ids"
]
Arrays: TypeAlias = "dict[str, NDArray[np.int64] | NDArray[np.int32]]"

COLUMNS: tuple[Column, ...] = ("input_ids", "labels", "position_ids", "sample_ids")


def labels(ids_BT: NDArray[np.int64], starts: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """`ids_BT` into `out`, with the first token of each document masked: nothing before it predicts it.

    `starts` are flat positions in the batch. A row's first position counts as a start, so that the number of
    labels other than -100 is exactly the number of trained tokens.
    """
    np.copyto(out, ids_BT)
    out.reshape(-1)[starts] = IGNORE


def padding(filled: NDArray[np.int64], seq_len: int) -> NDArray[np.bool_]:
    """Shape (rows, seq_len): True where a row of `filled` tokens holds none. Padding is known by its place alone."""
    return np.arange(seq_len) >= filled[:, None]


def position_ids(starts: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """0, 1, 2, … restarting at each of `starts` (flat, ascending, the first one 0), into `out`."""
    flat = out.reshape(-1)
    flat[:] = 1
    flat[starts[1:]] -= np.diff(starts)
    flat[0] = 0
    np.cumsum(flat, out=flat)


def cu_seqlens(starts: NDArray[np.int64], batches: int, positions: int) -> list[NDArray[np.int32]]:
    """Cumulative document lengths of each of `batches` flattened batches of `positions`: 0 first, `positions` last.

    `starts` are flat positions over all of them, ascending; each batch's first position is one.
    """
    first = np.searchsorted(starts, np.arange(batches + 1, dtype=np.int64) * positions)
    batch = np.repeat(np.arange(batches, dtype=np.int64), np.diff(first))
    cuts = np.full(starts.size + batches, positions, np.int32)
    cuts[np.arange(starts.size) + batch] = starts - batch * positions
    # Each batch has its end behind its starts.
    ends = (first[1:] + np.arange(1, batches + 1)).tolist()
    return [cuts[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def unknown_columns(columns: Sequence[str]) -> list[str]:
    return [c for c in columns if c not in get_args(Column)]
