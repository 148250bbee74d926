"""torchdata.nodes with its option `prebatch` at a group of items: it holds two groups for each worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tools.bench.engine.adapters import torchdata
from tools.bench.engine.stamps import Stamps
from tools.bench.engine.workloads import Workload


@contextmanager
def opened(workload: Workload, stamps: Stamps) -> Iterator[Iterator[object]]:
    with torchdata.opened(workload, stamps, prebatch=workload.group) as values:
        yield values
