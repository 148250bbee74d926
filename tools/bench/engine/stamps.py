"""When the source gave an item, for whoever gets it: in memory that processes share."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import perf_counter

from tools.bench.engine.workloads import Function

SLOTS = 1 << 14
"""More than there are stamped items on their way at once."""


class Stamps:
    """The times of every `stride`-th item, the latest of them. Pickles by its file, which lives as long as the bench.

    `perf_counter` is one clock for all processes of the machine.
    """

    def __init__(self, path: Path, stride: int) -> None:
        self._path, self._stride = path, stride
        if not path.exists():
            path.write_bytes(bytes(8 * SLOTS))
        with path.open("r+b") as file:
            self._times = memoryview(mmap.mmap(file.fileno(), 8 * SLOTS)).cast("d")

    def __reduce__(self) -> tuple[type[Stamps], tuple[Path, int]]:
        return Stamps, (self._path, self._stride)

    @property
    def stride(self) -> int:
        return self._stride

    def give(self, index: int) -> None:
        """Item `index`, which is a multiple of the stride, is given now."""
        self._times[index // self._stride % SLOTS] = perf_counter()

    def given(self, index: int) -> float:
        """When item `index` was given."""
        return self._times[index // self._stride % SLOTS]


def indices(stamps: Stamps) -> Iterator[int]:
    """0, 1, 2, … without end, stamped: the source of every side that takes an iterable."""
    for first in count(0, stamps.stride):
        stamps.give(first)
        yield from range(first, first + stamps.stride)


class Stamping:
    """A first map that stamps its input: the source of sides that make their indices themselves."""

    def __init__(self, function: Function, stamps: Stamps) -> None:
        self._function, self._stamps = function, stamps

    def __call__(self, index: int) -> object:
        if index % self._stamps.stride == 0:
            self._stamps.give(index)
        return self._function(index)
