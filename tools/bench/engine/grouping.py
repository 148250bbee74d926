"""Maps over groups, for sides that hand over as many items at a time as one gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from tools.bench.engine.stamps import Stamps
from tools.bench.engine.workloads import Function


class Each:
    """`function` over each item of a group."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, group: Iterable[int]) -> list[object]:
        return [self._function(value) for value in group]


def groups(stamps: Stamps, size: int) -> Iterator[range]:
    """0, 1, 2, … without end, stamped, `size` at a time."""
    for first in count(0, size):
        for index in range(first + -first % stamps.stride, first + size, stamps.stride):
            stamps.give(index)
        yield range(first, first + size)
