"""SPDL whose user has put groups of `Workload.group` items in place of items himself, from the source on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from spdl.pipeline import PipelineBuilder

from tools.bench.engine.adapters.spdl import piped
from tools.bench.engine.grouping import groups
from tools.bench.engine.stamps import Stamps
from tools.bench.engine.workloads import Workload


@contextmanager
def opened(workload: Workload, stamps: Stamps) -> Iterator[Iterator[object]]:
    builder = PipelineBuilder[object, object]().add_source(groups(stamps, workload.group))
    with piped(builder, workload, grouped=True) as lists:
        yield chain.from_iterable(lists)
