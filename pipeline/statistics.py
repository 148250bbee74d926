"""What each stage has done: counters that its workers keep, and the frozen records that are made of them.

A worker counts in a `Meter` of its own, so that counting takes no lock. A snapshot adds the meters of a stage up while
they go on: its figures may be a call apart from each other, and a call or a wait counts once it is over.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar, Literal, TypeAlias

from .item import JSON

Where: TypeAlias = Literal["source", "loop", "thread", "process"]

_BUCKETS = 8 * 61
"""Up to 2**64 ns, eight to each doubling."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many calls took how long, in buckets an eighth of a power of two wide (12.5% or, below 100 ns, 16 ns)."""

    counts: tuple[int, ...] = (0,) * _BUCKETS

    def __post_init__(self) -> None:
        if len(self.counts) != _BUCKETS:
            raise ValueError(f"a histogram has {_BUCKETS} buckets, got {len(self.counts)}")

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Histogram:
        """The histogram of these latencies."""
        meter = Meter()
        for each in seconds:
            meter.call(0, 0.0, each)
        return meter.latencies()

    @property
    def count(self) -> int:
        """Calls."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """Seconds that the share `q` of the calls did not exceed, to the middle of a bucket; 0.0 without calls.

        ValueError: `q` is not in [0, 1].
        """
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile is in [0, 1], got {q}")
        rank = max(1.0, q * self.count)
        for bucket, calls in enumerate(accumulate(self.counts)):
            if calls >= rank:
                shift = bucket >> 3
                low_ns = ((bucket & 7) + 8 << shift) - 8
                return (low_ns + (1 << shift) / 2) / 1e9
        return 0.0

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    def __sub__(self, earlier: Histogram) -> Histogram:
        """What came after `earlier`, a part of this."""
        return Histogram(tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True)))


class Meter:
    """What one worker has done; written by its thread alone, and read from any."""

    __slots__ = (
        "_counts",
        "blocked_s",
        "busy_s",
        "cpu_s",
        "dropped_items",
        "items",
        "nbytes",
        "retried_calls",
        "starved_s",
    )

    one_by_one: ClassVar[bool] = False
    """Whether calls that are made in a row must be timed each on its own."""

    def __init__(self) -> None:
        self.items = 0
        self.nbytes = 0
        self.busy_s = 0.0
        self.starved_s = 0.0
        self.blocked_s = 0.0
        self.cpu_s = 0.0
        self.retried_calls = 0
        self.dropped_items = 0
        self._counts = [0] * _BUCKETS

    def call(self, index: int, began: float, ended: float, waited_s: float = 0.0) -> None:
        """One call of the stage's function on item `index`, in `perf_counter` seconds; `ended` >= `began`.

        `waited_s`: of these seconds, spent in waits that have been counted already.
        """
        took = ended - began - waited_s
        self.busy_s += took
        ns = int(took * 1e9) + 8  # so that there are always four bits, and no branch
        shift = ns.bit_length() - 4
        self._counts[(shift << 3) + (ns >> shift) - 8] += 1

    def calls(self, index: int, count: int, began: float, ended: float) -> None:
        """`count` calls in a row from item `index` on, so small that they are timed together."""
        self.busy_s += ended - began
        ns = int((ended - began) / count * 1e9) + 8
        shift = ns.bit_length() - 4
        self._counts[(shift << 3) + (ns >> shift) - 8] += count

    def emitted(self, index: int) -> None:
        """The stage gave the number `index` to an item of its own making."""

    def out(self, count: int, nbytes: int) -> None:
        """So many items of `nbytes` together left the stage."""
        self.items += count
        self.nbytes += nbytes

    def starved(self, seconds: float) -> None:
        """The worker has waited for input, until now."""
        self.starved_s += seconds

    def blocked(self, seconds: float) -> None:
        """The worker has waited for room behind the stage, until now."""
        self.blocked_s += seconds

    def computed(self, cpu_s: float) -> None:
        """The worker has used so much of a processor."""
        self.cpu_s += cpu_s

    def retried(self) -> None:
        """A call failed and is made again."""
        self.retried_calls += 1

    def dropped(self) -> None:
        """An item failed and is left out."""
        self.dropped_items += 1

    def latencies(self) -> Histogram:
        """How long the calls have taken."""
        return Histogram(tuple(self._counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStats:
    """What one stage has done since the start, or between two snapshots."""

    name: str
    """The stage's name in the plan."""
    on: Where
    """Where it works; a fold is on "thread"."""
    width: int
    """How many calls can be under way at a time."""
    can_widen: bool
    """Whether more calls could be: False for a source, a fold, and a `def` on the loop."""
    latencies: Histogram = field(repr=False)
    """How long its calls took."""
    items: int
    """Items that left it."""
    bytes: int
    """What these weighed."""
    busy_s: float
    """Seconds spent in calls, all workers together; at most `width` times the elapsed ones."""
    starved_s: float
    """Wall-clock seconds in which a free worker waited for input."""
    blocked_s: float
    """Wall-clock seconds in which a free worker waited for room behind the stage."""
    cpu_s: float
    """Processor seconds of its threads or processes, all workers together; 0.0 where it shares the loop's thread."""
    queued: int
    """Items that wait for the next stage now."""
    ahead: int
    """How many items it holds at most, running calls and waiting results together."""
    retried: int
    """Calls that failed and were made again."""
    dropped: int
    """Items that failed and were left out."""

    @classmethod
    def of(
        cls,
        meters: Sequence[Meter],
        *,
        name: str,
        on: Where,
        width: int,
        can_widen: bool,
        queued: int,
        ahead: int,
    ) -> StageStats:
        """Add up the `meters` of a stage's workers, from any thread."""
        return cls(
            name=name,
            on=on,
            width=width,
            can_widen=can_widen,
            latencies=Histogram(
                tuple(map(sum, zip(*(meter.latencies().counts for meter in meters), strict=True)))
            ),
            items=sum(meter.items for meter in meters),
            bytes=sum(meter.nbytes for meter in meters),
            busy_s=sum(meter.busy_s for meter in meters),
            starved_s=sum(meter.starved_s for meter in meters),
            blocked_s=sum(meter.blocked_s for meter in meters),
            cpu_s=sum(meter.cpu_s for meter in meters),
            queued=queued,
            ahead=ahead,
            retried=sum(meter.retried_calls for meter in meters),
            dropped=sum(meter.dropped_items for meter in meters),
        )

    @property
    def calls(self) -> int:
        """Calls of its function; of a source, items read; of a fold, inputs."""
        return self.latencies.count

    @property
    def p50_s(self) -> float:
        """Seconds that half of the calls did not exceed, to 12.5%."""
        return self.latencies.quantile(0.5)

    @property
    def p99_s(self) -> float:
        """Seconds that 99 of 100 calls did not exceed, to 12.5%."""
        return self.latencies.quantile(0.99)

    def since(self, earlier: StageStats) -> StageStats:
        """What it has done since the snapshot `earlier`; `queued` is of now."""
        return StageStats(
            name=self.name,
            on=self.on,
            width=self.width,
            can_widen=self.can_widen,
            latencies=self.latencies - earlier.latencies,
            items=self.items - earlier.items,
            bytes=self.bytes - earlier.bytes,
            busy_s=self.busy_s - earlier.busy_s,
            starved_s=self.starved_s - earlier.starved_s,
            blocked_s=self.blocked_s - earlier.blocked_s,
            cpu_s=self.cpu_s - earlier.cpu_s,
            queued=self.queued,
            ahead=self.ahead,
            retried=self.retried - earlier.retried,
            dropped=self.dropped - earlier.dropped,
        )

    def to_json(self) -> dict[str, JSON]:
        """Every figure by its name, as plain JSON data."""
        return {
            "name": self.name,
            "on": self.on,
            "width": self.width,
            "can_widen": self.can_widen,
            "calls": self.calls,
            "items": self.items,
            "bytes": self.bytes,
            "busy_s": self.busy_s,
            "starved_s": self.starved_s,
            "blocked_s": self.blocked_s,
            "cpu_s": self.cpu_s,
            "queued": self.queued,
            "ahead": self.ahead,
            "retried": self.retried,
            "dropped": self.dropped,
            "p50_s": self.p50_s,
            "p99_s": self.p99_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats:
    """What the consumer has done since the start, or between two snapshots."""

    items: int
    """Items that it took."""
    busy_s: float
    """Seconds that it spent on its own work."""
    waited_s: float
    """Seconds that it waited for an item."""

    def since(self, earlier: ConsumerStats) -> ConsumerStats:
        """What it has done since the snapshot `earlier`."""
        return ConsumerStats(
            items=self.items - earlier.items,
            busy_s=self.busy_s - earlier.busy_s,
            waited_s=self.waited_s - earlier.waited_s,
        )

    def to_json(self) -> dict[str, JSON]:
        """Every figure by its name, as plain JSON data."""
        return {"items": self.items, "busy_s": self.busy_s, "waited_s": self.waited_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A snapshot of a plan at work; printed, it is a table."""

    elapsed_s: float
    """Wall-clock seconds since the start, or between two snapshots."""
    stages: tuple[StageStats, ...]
    """Every stage, the source first."""
    consumer: ConsumerStats
    queued_bytes: int
    """What all items on their way weigh now."""
    budget_bytes: int
    """What they may weigh together."""
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Processor cores that this process may use."""

    def stage(self, name: str) -> StageStats:
        """The stage of that name. KeyError: the plan has none."""
        return {stage.name: stage for stage in self.stages}[name]

    def since(self, earlier: Stats) -> Stats:
        """What has been done since `earlier`, a snapshot of the same plan at work.

        ValueError: `earlier` is of another plan, or later.
        """
        names, others = ([stage.name for stage in stats.stages] for stats in (self, earlier))
        if names != others:
            raise ValueError(f"a snapshot of another plan: its stages are {others}, here they are {names}")
        if earlier.elapsed_s > self.elapsed_s:
            raise ValueError(
                f"a later snapshot, {earlier.elapsed_s:.3f} s after the start, this one {self.elapsed_s:.3f} s: "
                "write later.since(earlier)"
            )
        return Stats(
            elapsed_s=self.elapsed_s - earlier.elapsed_s,
            stages=tuple(now.since(then) for now, then in zip(self.stages, earlier.stages, strict=True)),
            consumer=self.consumer.since(earlier.consumer),
            queued_bytes=self.queued_bytes,
            budget_bytes=self.budget_bytes,
            cores=self.cores,
        )

    def to_json(self) -> dict[str, JSON]:
        """Every figure by its name, as plain JSON data."""
        return {
            "elapsed_s": self.elapsed_s,
            "stages": [stage.to_json() for stage in self.stages],
            "consumer": self.consumer.to_json(),
            "queued_bytes": self.queued_bytes,
            "budget_bytes": self.budget_bytes,
            "cores": self.cores,
        }

    def __str__(self) -> str:
        return _table(self)


def _table(stats: Stats) -> str:
    """One line a stage: busy and cpu are shares of what its width allows, starved and blocked of the time."""
    elapsed_s = stats.elapsed_s or float("inf")
    consumer = stats.consumer
    rows = [
        (
            "stage",
            "on",
            "width",
            "calls",
            "items",
            "MB",
            "busy",
            "starved",
            "blocked",
            "cpu",
            "queued",
            "p50",
            "p99",
        )
    ]
    for stage in stats.stages:
        full_s = elapsed_s * stage.width
        rows.append(
            (
                stage.name,
                stage.on,
                str(stage.width),
                f"{stage.calls:,}",
                f"{stage.items:,}",
                f"{stage.bytes / 1e6:,.1f}",
                f"{stage.busy_s / full_s:.0%}",
                f"{stage.starved_s / elapsed_s:.0%}",
                f"{stage.blocked_s / elapsed_s:.0%}",
                f"{stage.cpu_s / full_s:.0%}",
                f"{stage.queued}/{stage.ahead}",
                _duration(stage.p50_s),
                _duration(stage.p99_s),
            )
        )
    busy, starved = f"{consumer.busy_s / elapsed_s:.0%}", f"{consumer.waited_s / elapsed_s:.0%}"
    rows.append(("consumer", "", "", "", f"{consumer.items:,}", "", busy, starved, "", "", "", "", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{stats.elapsed_s:.1f} s, {consumer.items / elapsed_s:,.1f} items/s; "
        f"{stats.queued_bytes / 1e6:,.1f} of {stats.budget_bytes / 1e6:,.1f} MB queued"
    ]
    for row in rows:
        cells = [
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    for stage in stats.stages:
        if stage.retried or stage.dropped:
            lines.append(f"{stage.name}: {stage.retried:,} calls made again, {stage.dropped:,} items dropped")
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    for unit, scale in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"
