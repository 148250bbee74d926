"""`queue.Queue` between two threads: one that makes the items, whatever the width, and the consumer's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat, starmap
from queue import Queue
from threading import Thread

from tools.bench.engine.adapters import limit
from tools.bench.engine.stamps import Stamps
from tools.bench.engine.workloads import Workload


@contextmanager
def opened(workload: Workload, stamps: Stamps) -> Iterator[Iterator[object]]:
    queue: Queue[object] = Queue(workload.ahead)

    def fill() -> None:
        with limit.opened(workload, stamps) as values:
            for value in values:
                queue.put(value)

    Thread(target=fill, daemon=True).start()
    yield starmap(queue.get, repeat(()))
