"""Grain: maps over a range, read by `width` threads, or (`mp_prefetch`) by `width` processes of one thread each.

Items are put in lists by its `batch` before they are read, without which a hop of 0.1 ms goes to each. Only arrays that
cross processes are not: alone, Grain passes them in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import absl.logging
import grain

from tools.bench.engine.stamps import Stamping, Stamps
from tools.bench.engine.workloads import Workload


@contextmanager
def opened(workload: Workload, stamps: Stamps) -> Iterator[Iterator[object]]:
    absl.logging.set_verbosity("error")
    first, *others = workload.maps
    dataset = grain.MapDataset.range(1 << 40).map(Stamping(first, stamps))
    for function in others:
        dataset = dataset.map(function)
    alone = workload.on == "process" and workload.use is not None
    size = 1 if alone else workload.group
    if not alone:
        dataset = dataset.batch(size, batch_fn=list)
    if workload.on == "thread":
        read = dataset.to_iter_dataset(grain.ReadOptions(workload.width, workload.ahead // size))
    else:
        options = grain.MultiprocessingOptions(workload.width, workload.ahead // workload.width // size)
        read = dataset.to_iter_dataset(grain.ReadOptions(0, 0)).mp_prefetch(options)
    values = iter(read)
    yield values if alone else chain.from_iterable(values)
    values.close()
