"""Packing: which runs of the token stream make up a sample.

    lengths, bounds ─┬─ wrapped ───────────────────────────────► Wrapped (computed)
                     ├─ bfd ──────── best_fit ─┬─► plan_file ──► Planned (mapped)
                     └─ bfd_split ── filled_up ┘   (once)
                                                       samples ─► spans, starts, filled

A packing is an index over a corpus, never a copy of it: another `seq_len` is another packing of the same bytes.

| method | documents | dropped | padded |
| --- | --- | --- | --- |
| wrapped | end to end, cut wherever a row ends | tokens % seq_len, at the end | none |
| bfd | whole; longer ones cut into pieces of seq_len and a rest | none | what best-fit decreasing leaves |
| bfd_split | as bfd, then the emptiest rows split over the others' room | none | less than one row |
"""

from stages.packing.best_fit import ALGORITHM
from stages.packing.opening import METHODS, PLANS, Method, packed
from stages.packing.planned import Planned
from stages.packing.protocol import Packing, TokenAccount
from stages.packing.wrapped import Wrapped

__all__ = [
    "ALGORITHM",
    "METHODS",
    "PLANS",
    "Method",
    "Packing",
    "Planned",
    "TokenAccount",
    "Wrapped",
    "packed",
]
