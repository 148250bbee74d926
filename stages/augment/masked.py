"""Masked language modelling, as BERT is trained (Devlin et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stages.augment.randomness import below, chance, words
from stages.augment.rows import Rows, Widths, share, token_id
from stages.collate import IGNORE

_CHOSEN, _MASKED, _RANDOM, _REPLACEMENT = range(4)


@dataclass(frozen=True, slots=True)
class MaskedLanguageModelling:
    """Chooses tokens at random; of those most become `mask`, some another token, some stay. Only they are trained.

    The shares are those of Hugging Face's `DataCollatorForLanguageModeling`.
    """

    mask: int
    vocab_size: int
    special: tuple[int, ...] = ()
    """Tokens that are never chosen: bos, eos and their like."""
    chosen: float = 0.15
    masked: float = 0.8
    """Of the chosen ones."""
    random: float = 0.1
    """Of the chosen ones; what is left of them stays."""

    def __post_init__(self) -> None:
        token_id("mask", self.mask)
        if not 1 <= self.vocab_size <= 1 << 31:
            raise ValueError(f"vocab_size must be in [1, 2**31], got {self.vocab_size}")
        share("chosen", self.chosen)
        share("masked", self.masked)
        share("random", self.random)
        if self.masked + self.random > 1 + 1e-9:
            raise ValueError(f"masked + random must be <= 1, got {self.masked} + {self.random}")

    @property
    def identity(self) -> str:
        return f"{self!r}, algorithm 1"

    def widths(self, seq_len: int) -> Widths:
        return Widths(seq_len, seq_len)

    def __call__(self, rows: Rows, seed: int) -> Rows:
        eligible = rows.trainable() & ~np.isin(rows.ids_ST, self.special)
        row, place = np.nonzero(eligible)
        position = rows.positions_S[row]
        chosen = chance(words(seed, _CHOSEN, position, place), self.chosen)
        row, place, position = row[chosen], place[chosen], position[chosen]

        masked = chance(words(seed, _MASKED, position, place), self.masked)
        # Of those that are not masked, so that the two shares add up.
        rest = max(1 - self.masked, 1e-300)
        random = ~masked & chance(words(seed, _RANDOM, position, place), min(self.random / rest, 1))
        replacement = below(words(seed, _REPLACEMENT, position, place), np.array([self.vocab_size]))

        ids_ST = rows.ids_ST.copy()
        labels_ST = np.full_like(ids_ST, IGNORE)
        labels_ST[row, place] = ids_ST[row, place]
        ids_ST[row[masked], place[masked]] = self.mask
        ids_ST[row[random], place[random]] = replacement[random]
        return replace(rows, ids_ST=ids_ST, labels_SU=labels_ST)
