"""torch.utils.data.DataLoader: `width` worker processes in every workload, for it has no others.

A worker gets a batch of indices and sends a batch back, two batches ahead for each worker (its default). Numbers are
sent as lists, arrays stacked into one tensor in shared memory (its default too), which the consumer reads by rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import cast

from torch.utils.data import DataLoader, Dataset

from tools.bench.engine.stamps import Stamps, indices
from tools.bench.engine.workloads import Workload


class Mapped(Dataset[object]):
    """Item k by its index."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __getitem__(self, index: int) -> object:
        return self._workload.apply(index)


@contextmanager
def opened(workload: Workload, stamps: Stamps) -> Iterator[Iterator[object]]:
    loader: DataLoader[list[object]] = DataLoader(
        cast("Dataset[list[object]]", Mapped(workload)),  # what it holds; the loader gives lists of that
        sampler=indices(stamps),
        batch_size=workload.group,
        collate_fn=list if workload.use is None else None,
        num_workers=workload.width,
    )
    yield chain.from_iterable(loader)
