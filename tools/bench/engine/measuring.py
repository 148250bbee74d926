"""What a consumer sees of a side while it reads for a while: rate, latencies, CPU time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import quantiles
from time import perf_counter

from tools.bench.engine.stamps import Stamps
from tools.bench.engine.workloads import Workload


class WrongValue(Exception):
    """A side gave another value than its workload has in that place: a ratio to it would mean nothing."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen while reading."""

    items: int
    seconds: float
    p50_us: float
    """Latency: from when the source gave an item to when the consumer got it."""
    p99_us: float
    cpu_s: float
    """Of this process and all that it has started."""


class Consumer:
    """Reads a side's values, checks every `stride`-th one, and goes on where it stopped."""

    def __init__(self, values: Iterator[object], workload: Workload, stamps: Stamps) -> None:
        self._values, self._workload, self._stamps = values, workload, stamps
        self._strides = 0

    def take(self, strides: int) -> list[object]:
        """The numbers of the next items, unchecked."""
        self._strides += strides
        return list(self._workload.numbers(islice(self._values, strides * self._workload.stride)))

    def read(self, warm_s: float, seconds: float) -> Seen:
        """Read for `seconds`, at least one stride, after `warm_s` unmeasured: what buffers hold has waited since the
        last time. Raises WrongValue."""
        processes = Processes()
        self._read_for(warm_s)
        cpu_s = processes.cpu_s()
        began = perf_counter()
        latencies = self._read_for(seconds)
        now = perf_counter()
        cuts = quantiles(latencies, n=100, method="inclusive") if len(latencies) > 1 else latencies * 99
        return Seen(
            items=len(latencies) * self._workload.stride,
            seconds=now - began,
            p50_us=cuts[49] * 1e6,
            p99_us=cuts[98] * 1e6,
            cpu_s=processes.cpu_s() - cpu_s,
        )

    def _read_for(self, seconds: float) -> list[float]:
        latencies: list[float] = []
        ends = perf_counter() + seconds
        while not latencies or perf_counter() < ends:
            latencies.append(self._read_stride())
        return latencies

    def _read_stride(self) -> float:
        """Read one stamped item and those up to the next; gives the latency of the first, in seconds."""
        workload, index = self._workload, self._strides * self._workload.stride
        value = next(self._values)
        latency = perf_counter() - self._stamps.given(index)
        number = next(workload.numbers(iter((value,))))
        if number != workload.expected(index):
            raise WrongValue(
                f"{workload.name}: item {index} is {number}, expected {workload.expected(index)}"
            )
        deque(workload.numbers(islice(self._values, workload.stride - 1)), maxlen=0)
        self._strides += 1
        return latency


class Processes:
    """This process and the descendants that it has now: to look for them later would take what is measured its time."""

    def __init__(self) -> None:
        seen = {int(folder.name): _stat(folder) for folder in Path("/proc").glob("[0-9]*")}
        parents = {process: int(stat[_PARENT]) for process, stat in seen.items() if stat}
        self._folders = [
            Path(f"/proc/{process}") for process in parents if _descends(process, os.getpid(), parents)
        ]

    def cpu_s(self) -> float:
        """CPU seconds so far of those that live, each to the kernel's tick (10 ms)."""
        stats = [stat for folder in self._folders if (stat := _stat(folder))]
        return sum(int(stat[_USER]) + int(stat[_SYSTEM]) for stat in stats) / os.sysconf("SC_CLK_TCK")


_PARENT, _USER, _SYSTEM = 1, 11, 12  # counted from the field after the name, as in proc(5) less 3


def _stat(folder: Path) -> list[str]:
    """The fields after the process's name, which may hold spaces and brackets; none if it has ended."""
    try:
        return (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _descends(process: int, root: int, parents: dict[int, int]) -> bool:
    while process != root and process in parents:
        process = parents[process]
    return process == root
