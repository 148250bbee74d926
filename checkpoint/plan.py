"""Who stores what: the tensors of replicated state split among ranks, the same on each without a word."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def split(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """For each rank the ascending indices of its share, about equal in bytes.

    The largest goes first, each to the rank that has least; ties go to the lower index and the lower rank. No
    share is larger than 4/3 - 1/(3·ranks) of the best split's largest (Graham's bound).
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        load, rank = loads[0]
        shares[rank].append(index)
        heapq.heapreplace(loads, (load + sizes[index], rank))
    return [sorted(share) for share in shares]
