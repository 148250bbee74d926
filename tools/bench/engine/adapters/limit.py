"""The bare loop: every item made by the consumer's thread when it asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tools.bench.engine.stamps import Stamps, indices
from tools.bench.engine.workloads import Workload


@contextmanager
def opened(workload: Workload, stamps: Stamps) -> Iterator[Iterator[object]]:
    values: Iterator[object] = indices(stamps)
    for function in workload.maps:
        values = map(function, values)
    yield values
