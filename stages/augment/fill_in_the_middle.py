"""Fill-in-the-middle for causal models (Bavarian et al. 2022), within each document."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stages.augment.randomness import below, chance, words
from stages.augment.rows import Rows, Widths, share, token_id
from stages.collate import IGNORE

_CHOSEN, _SUFFIX_FIRST, _CUT, _OTHER_CUT = range(4)
_SENTINELS = 3
_PREFIX, _SUFFIX, _MIDDLE = -1, -2, -3
"""Where a position takes a sentinel instead of a token."""


@dataclass(frozen=True, slots=True)
class FillInTheMiddle:
    """Cuts a document at two places between tokens and moves its middle to its end.

    prefix, suffix, middle become `<prefix> prefix <suffix> suffix <middle> middle` (PSM), or
    `<prefix> <suffix> suffix <middle> prefix middle` (SPM). A document keeps its place in the row: the last three
    tokens of its text give way to the three sentinels. Its bos stays first, its eos last.
    """

    prefix: int
    middle: int
    suffix: int
    rate: float = 0.5
    """Share of the documents (or of their pieces, where a row cuts them) that are rearranged."""
    suffix_first: float = 0.5
    """Share of those that take the SPM form."""
    shortest: int = 16
    """Documents of fewer tokens stay as they are."""
    bos: int | None = None
    eos: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("prefix", self.prefix), ("middle", self.middle), ("suffix", self.suffix)):
            token_id(name, value)
        if len({self.prefix, self.middle, self.suffix}) < _SENTINELS:
            raise ValueError(
                f"sentinels must differ: prefix {self.prefix}, middle {self.middle}, suffix {self.suffix}"
            )
        share("rate", self.rate)
        share("suffix_first", self.suffix_first)
        if self.shortest < _SENTINELS + 2:
            raise ValueError(
                f"shortest must be >= {_SENTINELS + 2} (the sentinels, bos and eos), got {self.shortest}"
            )

    @property
    def identity(self) -> str:
        return f"{self!r}, algorithm 1"

    def widths(self, seq_len: int) -> Widths:
        return Widths(seq_len, seq_len)

    def __call__(self, rows: Rows, seed: int) -> Rows:
        flat = rows.ids_ST.reshape(-1)
        seq_len = rows.ids_ST.shape[1]
        row, place = np.divmod(rows.starts, seq_len)
        lengths = np.diff(rows.starts, append=flat.size)
        position = rows.positions_S[row]
        chosen = chance(words(seed, _CHOSEN, position, place), self.rate)
        chosen &= (lengths >= self.shortest) & (place < rows.filled_S[row])

        position, place = position[chosen], place[chosen]
        begin = rows.starts[chosen]
        end = begin + lengths[chosen]
        begin = begin + (flat[begin] == self.bos)
        end = end - (flat[end - 1] == self.eos)
        room = end - begin - _SENTINELS
        cuts = np.sort(
            [below(words(seed, use, position, place), room + 1) for use in (_CUT, _OTHER_CUT)], axis=0
        )
        suffix_first = chance(words(seed, _SUFFIX_FIRST, position, place), self.suffix_first)

        source = np.arange(flat.size, dtype=np.int64)
        for at, tokens, cut, other, spm in zip(
            begin.tolist(), room.tolist(), *cuts.tolist(), suffix_first.tolist(), strict=True
        ):
            _rearrange(source[at : at + tokens + _SENTINELS], cut, other, spm)
        sentinels = [(_PREFIX, self.prefix), (_SUFFIX, self.suffix), (_MIDDLE, self.middle)]
        ids, labels = flat[source], np.where(rows.trainable().reshape(-1), flat, IGNORE)[source]
        for code, sentinel in sentinels:
            ids[source == code] = labels[source == code] = sentinel
        labels[rows.starts] = IGNORE
        return replace(
            rows, ids_ST=ids.reshape(rows.ids_ST.shape), labels_SU=labels.reshape(rows.ids_ST.shape)
        )


def _rearrange(source: NDArray[np.int64], cut: int, other: int, suffix_first: bool) -> None:
    """Write where each position of a document takes its token from, in place of where it is."""
    text = source[: len(source) - _SENTINELS].copy()
    prefix, middle, suffix = text[:cut], text[cut:other], text[other:]
    if suffix_first:
        source[:] = np.concatenate([[_PREFIX, _SUFFIX], suffix, [_MIDDLE], prefix, middle])
    else:
        source[:] = np.concatenate([[_PREFIX], prefix, [_SUFFIX], suffix, [_MIDDLE], middle])
