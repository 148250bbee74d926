"""Span corruption for sequence-to-sequence models, as T5 is trained (Raffel et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.augment.randomness import words
from stages.augment.rows import Rows, Widths, token_id
from stages.collate import IGNORE

_NOISE, _TEXT = range(2)


@dataclass(frozen=True, slots=True)
class SpanCorruption:
    """Takes spans out of a row and leaves a sentinel for each; the labels are the sentinels with what they stand for.

    A row is one text: a span may reach over the border of two documents, as in T5's own training. Of a row of n tokens
    `round(n * density)` are taken out, in spans of `mean_span` on average, so rows of equal length keep equal lengths.
    Both sides end with `eos`. T5 has position biases, no positions: each row counts as one document afterwards.
    """

    sentinels: tuple[int, ...]
    """In the order of their use: `<extra_id_0>` first."""
    eos: int
    pad: int = 0
    density: float = 0.15
    mean_span: float = 3.0

    def __post_init__(self) -> None:
        token_id("eos", self.eos)
        token_id("pad", self.pad)
        for sentinel in self.sentinels:
            token_id("a sentinel", sentinel)
        if len(set(self.sentinels)) < len(self.sentinels):
            raise ValueError(f"sentinels must differ, got {self.sentinels}")
        if not 0 < self.density < 1:
            raise ValueError(f"density must be in (0, 1), got {self.density}")
        if not self.mean_span >= 1:
            raise ValueError(f"mean_span must be >= 1, got {self.mean_span}")

    @property
    def identity(self) -> str:
        return f"{self!r}, algorithm 1"

    def widths(self, seq_len: int) -> Widths:
        noise, spans = self.corrupted(seq_len)
        if spans > len(self.sentinels):
            raise ValueError(
                f"{spans} spans of a row of {seq_len} tokens need as many sentinels, got {len(self.sentinels)}: lower "
                "seq_len or density, or raise mean_span"
            )
        return Widths(seq_len - noise + spans + 1, noise + spans + 1)

    def corrupted(self, tokens: int) -> tuple[int, int]:
        """How many of `tokens` are taken out, and in how many spans; neither falls as `tokens` grows."""
        if tokens < 2:
            return 0, 0
        noise = min(max(int(tokens * self.density + 0.5), 1), tokens - 1)
        return noise, min(max(int(noise / self.mean_span + 0.5), 1), tokens - noise)

    def __call__(self, rows: Rows, seed: int) -> Rows:
        samples = len(rows.ids_ST)
        widths = self.widths(rows.ids_ST.shape[1])
        ids_ST = np.full((samples, widths.ids), self.pad, np.int64)
        labels_SU = np.full((samples, widths.labels), IGNORE, np.int64)
        filled_S = np.empty(samples, np.int64)
        targets_ST = np.where(rows.trainable(), rows.ids_ST, IGNORE)
        for row in range(samples):
            tokens = int(rows.filled_S[row])
            taken = self._taken(tokens, seed, rows.positions_S[row : row + 1])
            first = np.diff(taken, prepend=False) & taken
            sentinel = np.array([*self.sentinels, self.eos], np.int64)[np.cumsum(first) - 1]
            text = np.where(first, sentinel, rows.ids_ST[row, :tokens])[~taken | first]
            filled_S[row] = text.size + 1
            ids_ST[row, : text.size + 1] = np.append(text, self.eos)
            # Each span behind its sentinel.
            spans = np.insert(targets_ST[row, :tokens], np.flatnonzero(first), sentinel[first])
            spans = spans[np.insert(taken, np.flatnonzero(first), True)]
            labels_SU[row, : spans.size + 1] = np.append(spans, self.eos)
        begins = np.arange(samples, dtype=np.int64) * widths.ids
        padded = filled_S < widths.ids
        starts = np.sort(np.concatenate([begins, (begins + filled_S)[padded]]))
        return Rows(rows.positions_S, ids_ST, labels_SU, starts, filled_S)

    def _taken(self, tokens: int, seed: int, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which tokens of a row are taken out: text and spans by turns, text first."""
        noise, spans = self.corrupted(tokens)
        if not spans:
            return np.zeros(tokens, np.bool_)
        lengths = np.empty(2 * spans, np.int64)
        lengths[0::2] = _parts(tokens - noise, spans, seed, _TEXT, position)
        lengths[1::2] = _parts(noise, spans, seed, _NOISE, position)
        return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)


def _parts(items: int, count: int, seed: int, use: int, position: NDArray[np.int64]) -> NDArray[np.int64]:
    """`items` in `count` parts of at least one: each way to do so is as likely as any other."""
    keys = words(seed, use, position, np.arange(items - 1, dtype=np.int64))
    cuts = np.sort(np.argsort(keys, kind="stable")[: count - 1]) + 1
    return np.diff(cuts, prepend=0, append=items).astype(np.int64)
