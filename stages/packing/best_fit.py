"""Best-fit decreasing: which pieces of documents share a row.

Longest first, each piece goes into the fullest row that still has room for it, or into a new one (Ding et al.,
"Fewer Truncations Improve Language Modeling", 2024). Done for all pieces of one length at once: rows with the same
free room are alike, so it is enough to know how many there are of each. `free` below maps a room to groups of rows,
and one Python integer has the bit of each room in use, so that the best fit is its lowest bit from the length on:

    lengths ─► histogram ─► _fitted: groups of rows that were filled alike ─► _laid_out: the pieces, row by row

A row with the room c, the smallest that fits the length l, takes c // l pieces before the next best fit is another
row's: after the first, its own room is smaller still. A length opens at most three groups, and each step at least
halves a group's room: so there are some 3 x seq_len x log2(seq_len) steps at most, however many documents.

Ties (pieces of one length) go by the documents' order. All arithmetic is on integers: the plan is the same on every
platform. A stored plan and stored positions depend on every output: `ALGORITHM` changes when one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALGORITHM = 1
"""Of both methods. Plans made by another one are made anew, and feeds refuse positions counted with another one."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Pieces, row after row: row r has the pieces [offset[r], offset[r + 1])."""

    offset: NDArray[np.int64]
    """Shape (rows + 1,)."""
    start: NDArray[np.int64]
    """Token address of each piece, shape (pieces,)."""
    length: NDArray[np.uint32]
    """Tokens of each piece, at least 1, shape (pieces,)."""

    def __len__(self) -> int:
        return int(self.offset.size) - 1


def best_fit(lengths: NDArray[np.uint32], bounds: NDArray[np.int64], seq_len: int) -> Rows:
    """Documents whole, those longer than `seq_len` cut into pieces of it and a rest; the fewest rows that best-fit
    decreasing finds. Rows of several pieces come first, then those that a piece of `seq_len` fills.

    Memory: at most 50 bytes a document, the result included.
    """
    offset, start, length = _fitted_rows(lengths, bounds, seq_len)
    cut = np.flatnonzero(lengths >= seq_len)
    counts = (lengths[cut] // np.uint32(seq_len)).astype(np.int64)
    whole = np.repeat(bounds[cut], counts) + _within(counts) * seq_len
    return Rows(
        offset=np.concatenate([offset, offset[-1] + np.arange(1, whole.size + 1, dtype=np.int64)]),
        start=np.concatenate([start, whole]),
        length=np.concatenate([length, np.full(whole.size, seq_len, np.uint32)]),
    )


def filled_up(rows: Rows, seq_len: int) -> Rows:
    """As few rows as can be: the emptiest are dissolved and their pieces split over what room the others have.

    All rows but the last ones to be filled are full then: less than one row's worth of padding in all.
    """
    filled = _sums(rows)
    surplus = len(rows) - -(-int(filled.sum()) // seq_len)
    if surplus <= 0:
        return rows
    # Stable: which of several equally full rows comes first must not depend on the sort.
    by_room = np.argsort(filled, kind="stable")
    gone = np.sort(by_room[:surplus])
    open_rows = by_room[surplus:]
    open_rows = open_rows[filled[open_rows] < seq_len]
    room = np.cumsum(seq_len - filled[open_rows])
    counts = np.diff(rows.offset)
    pieces = np.repeat(rows.offset[gone], counts[gone]) + _within(counts[gone])
    ends = np.cumsum(rows.length[pieces], dtype=np.int64)
    # One line of tokens, marked where a piece ends and where a row is full: what lies between two marks is moved.
    marks = np.unique(np.concatenate([ends, room[room < ends[-1]]]))
    begins = np.concatenate([np.zeros(1, np.int64), marks[:-1]])
    piece = np.searchsorted(ends, begins, side="right")
    into = open_rows[np.searchsorted(room, begins, side="right")]
    piece_begins = ends[piece] - rows.length[pieces[piece]]
    start = rows.start[pieces[piece]] + begins - piece_begins
    length = (marks - begins).astype(np.uint32)
    order = np.argsort(into, kind="stable")
    places = rows.offset[into[order] + 1]
    kept = np.ones(rows.start.size, np.bool_)
    kept[pieces] = False
    kept = np.insert(kept, places, True)
    counts = counts + np.bincount(into, minlength=len(rows))
    counts = np.delete(counts, gone)
    return Rows(
        offset=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        start=np.insert(rows.start, places, start[order])[kept],
        length=np.insert(rows.length, places, length[order])[kept],
    )


@dataclass(frozen=True, slots=True)
class _Fill:
    """What a group of rows has taken: `each` pieces a row, the row `first` the piece `piece`, and so on; `before` it,
    others. Pieces are numbered longest first."""

    first: int
    piece: int
    each: int
    before: _Fill | None


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows [first, first + rows) that were filled alike."""

    first: int
    rows: int
    pieces: int
    """Of each row."""
    fill: _Fill | None


def _fitted(histogram: NDArray[np.int64], seq_len: int) -> Iterator[_Group]:
    """All rows, in no particular order. `histogram`: pieces of each length below `seq_len`."""
    free: dict[int, list[_Group]] = {}
    rooms = 0
    rows = piece = 0
    for length in np.flatnonzero(histogram)[::-1].tolist():
        left = int(histogram[length])
        while left:
            fitting = rooms >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                group = free[room].pop()
                if not free[room]:
                    rooms &= ~(1 << room)
            else:
                room = seq_len
                group = _Group(rows, -(-left // (seq_len // length)), 0, None)
                rows += group.rows
            each = room // length
            # The last row may get fewer: it then is a group of its own.
            each, taken = (each, min(left // each, group.rows)) if left >= each else (left, 1)
            if taken < group.rows:
                rest = _Group(group.first + taken, group.rows - taken, group.pieces, group.fill)
                free.setdefault(room, []).append(rest)
                rooms |= 1 << room
            fill = _Fill(group.first, piece, each, group.fill)
            filled = _Group(group.first, taken, group.pieces + each, fill)
            piece += taken * each
            left -= taken * each
            room -= each * length
            if room:
                free.setdefault(room, []).append(filled)
                rooms |= 1 << room
            else:
                yield filled
    for groups in free.values():
        yield from groups


def _fitted_rows(
    lengths: NDArray[np.uint32], bounds: NDArray[np.int64], seq_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
    """Rows of the pieces shorter than `seq_len`: offset, start, length."""
    # 16 bits where they suffice: numpy sorts those by radix, in a tenth of the time.
    width = "uint16" if seq_len <= 1 << 16 else "uint32"
    rest: NDArray[np.uint32] = (lengths % np.uint32(seq_len)).astype(width)
    histogram = np.bincount(rest, minlength=seq_len)
    pieces = rest.size - int(histogram[0])
    histogram[0] = 0
    # Longest first; documents of which nothing is left have the largest key, come last and are cut off.
    order = np.argsort(seq_len - 1 - rest, kind="stable")[:pieces]
    sorted_length = rest[order]
    del rest
    sorted_start = bounds[1:][order]
    del order
    sorted_start -= sorted_length
    groups = sorted(_fitted(histogram, seq_len), key=lambda group: group.first)
    rows = np.array([group.rows for group in groups], np.int64)
    counts = np.repeat(np.array([group.pieces for group in groups], np.int64), rows)
    offset = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    index = _laid_out(groups, pieces)
    return offset, sorted_start[index], sorted_length[index].astype(np.uint32)


def _laid_out(groups: list[_Group], pieces: int) -> NDArray[np.int64]:
    """The numbers of all pieces, row after row; within a row longest first."""
    index = np.empty(pieces, np.int64)
    at = 0
    for group in groups:
        size = group.rows * group.pieces
        block = index[at : at + size].reshape(group.rows, group.pieces)
        column, fill = group.pieces, group.fill
        while fill is not None:
            first = fill.piece + (group.first - fill.first) * fill.each
            column -= fill.each
            block[:, column : column + fill.each] = np.arange(
                first, first + group.rows * fill.each, dtype=np.int64
            ).reshape(group.rows, fill.each)
            fill = fill.before
        at += size
    return index


def _within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, … below each of `counts`, end to end."""
    return np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)


def _sums(rows: Rows) -> NDArray[np.int64]:
    """Tokens of each row."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.length, dtype=np.int64)])
    return np.diff(ends[rows.offset])
