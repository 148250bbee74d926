"""SPDL: a pipe for each map, its output in the input's order, in threads or in a ProcessPoolExecutor.

Items are grouped by its own `aggregate`, with which pipes over small items are twice as fast, and the consumer goes
through the groups, which is faster than `disaggregate`. Arrays of 1 MiB go one at a time: they cross processes as
pickles (torch tensors were slower yet), and groups only come later. Its worker regions, `to(...)`, keep no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import cast

from spdl.pipeline import PipelineBuilder

from tools.bench.engine.grouping import Each
from tools.bench.engine.stamps import Stamps, indices
from tools.bench.engine.workloads import Workload


@contextmanager
def opened(workload: Workload, stamps: Stamps) -> Iterator[Iterator[object]]:
    builder = PipelineBuilder[object, object]().add_source(indices(stamps))
    if workload.on == "process" and workload.use is not None:
        with piped(builder, workload, grouped=False) as items:
            yield items
    else:
        with piped(builder.aggregate(workload.group), workload, grouped=True) as groups:
            yield chain.from_iterable(groups)


@contextmanager
def piped(
    builder: PipelineBuilder[object, object], workload: Workload, *, grouped: bool
) -> Iterator[Iterator[Iterable[object]]]:
    """The workload's maps after what `builder` has, and a buffer of `ahead` items."""
    with ExitStack() as stack:
        executor = None
        if workload.on == "process":
            executor = stack.enter_context(ProcessPoolExecutor(workload.width))
        for function in workload.maps:
            builder.pipe(
                Each(function) if grouped else function,
                concurrency=workload.width,
                executor=executor,
                output_order="input",
            )
        builder.add_sink(workload.ahead // workload.group if grouped else workload.ahead)
        pipeline = builder.build(num_threads=workload.width * len(workload.maps))
        stack.enter_context(pipeline.auto_stop())
        yield cast("Iterator[Iterable[object]]", iter(pipeline))
