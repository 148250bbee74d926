"""torchdata.nodes: a ParallelMapper for each map, as its documents show it.

Arrays that cross processes are made tensors, for which torch's queues use shared memory; within threads that is slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torchdata import nodes

from tools.bench.engine.stamps import Stamps, indices
from tools.bench.engine.workloads import Function, Workload


class ToTensor:
    """`function`, its arrays as tensors."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, value: int) -> torch.Tensor:
        return torch.as_tensor(self._function(value))


@contextmanager
def opened(workload: Workload, stamps: Stamps, prebatch: int | None = None) -> Iterator[Iterator[object]]:
    tensors = workload.on == "process" and workload.use is not None
    node: nodes.BaseNode[object] = nodes.IterableWrapper(indices(stamps))
    for function in workload.maps:
        node = nodes.ParallelMapper(
            node,
            ToTensor(function) if tensors else function,
            num_workers=workload.width,
            method=workload.on,
            prebatch=prebatch,
        )
    yield iter(nodes.Loader(node))
