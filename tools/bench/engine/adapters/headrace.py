"""Headrace: a plan with `ahead` for each stage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from operator import attrgetter

from pipeline import Item, Plan, start
from pipeline.item import State
from tools.bench.engine.stamps import Stamps
from tools.bench.engine.workloads import Workload


class Indices:
    """0, 1, 2, … without end, each with where to go on after it."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps

    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        assert at is None
        for first in count(0, self._stamps.stride):
            self._stamps.give(first)
            for index in range(first, first + self._stamps.stride):
                yield Item(index, {"at": index + 1})


@contextmanager
def opened(workload: Workload, stamps: Stamps) -> Iterator[Iterator[object]]:
    plan: Plan[object] = Plan(Indices(stamps), ahead=workload.ahead)
    for function in workload.maps:
        plan = plan.map(function, width=workload.width, on=workload.on, ahead=workload.ahead)
    with start(plan) as running:
        yield map(attrgetter("value"), running)
