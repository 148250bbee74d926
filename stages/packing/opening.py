"""From a method's name to a packing of a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias, get_args

from stages.corpus import CorpusReader
from stages.packing.best_fit import ALGORITHM, Rows, best_fit, filled_up
from stages.packing.plan_file import PlanKey, plan
from stages.packing.planned import Planned
from stages.packing.protocol import Packing, checked_seq_len
from stages.packing.wrapped import Wrapped

Method: TypeAlias = Literal["wrapped", "bfd", "bfd_split"]
PLANS = "packings"
"""The folder in a corpus's folder in which its plans are kept."""
METHODS: tuple[Method, ...] = get_args(Method)


def packed(corpus: CorpusReader, method: Method, seq_len: int, plans: Path | None = None) -> Packing:
    """`corpus` in samples of `seq_len` tokens.

    `plans`: a folder in which plans of bfd and bfd_split are kept, made where it is missing; None: they are made
    each time (some million documents a second, 20 bytes a document kept in memory). ValueError: `seq_len` is not in
    [2, 2**31).
    """
    checked_seq_len(seq_len)
    if method == "wrapped":
        return Wrapped(corpus.meta.tokens, seq_len)

    def make() -> Rows:
        rows = best_fit(corpus.lengths, corpus.bounds, seq_len)
        return filled_up(rows, seq_len) if method == "bfd_split" else rows

    key = PlanKey(corpus.meta.digest, method, seq_len, ALGORITHM)
    return Planned(method, plan(key, make, plans), corpus.meta.tokens, seq_len)
