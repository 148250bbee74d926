"""A model of a plan at work, item by item, for what a verdict should say: no threads, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pipeline import ConsumerStats, StageStats, Stats
from pipeline.statistics import Meter, Where


@dataclass(frozen=True)
class Station:
    """A stage of known service times."""

    name: str
    service_s: float
    width: int = 1
    joins: int = 1
    """More than one: a fold that makes one item of so many."""
    splits: int = 1
    """More than one: a fold that makes so many items of one."""
    drops_every: int = 0
    """Which of its items are left out."""
    on: Where = "thread"
    cpu_share: float = 0.0

    @property
    def is_fold(self) -> bool:
        return self.joins > 1 or self.splits > 1

    @property
    def ahead(self) -> int:
        return max(32, 2 * self.width)


@dataclass
class _Passage:
    """What has gone through one station so far."""

    free: list[float]
    reserved: list[float] = field(default_factory=list)
    """When each of its outputs was reserved room, and so when its window's next place was needed."""
    taken: list[float] = field(default_factory=list)
    """When the next stage took each of its outputs."""
    calls: list[tuple[float, float]] = field(default_factory=list)
    outputs: list[float] = field(default_factory=list)
    dropped: list[float] = field(default_factory=list)
    ready: float = 0.0
    """No output can be taken before those in front of it."""


class Model:
    """Runs `n` items of the first station through all of them, to a consumer that takes `consumer_s` for each.

    A station takes inputs in order, when one of its `width` workers is free and its window has room; its window holds
    at most `ahead` items between being reserved and being taken, and gives them on in order.
    """

    def __init__(
        self,
        stations: Sequence[Station],
        consumer_s: float,
        n: int,
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.stations = stations
        self.consumer_s = consumer_s
        self._jitter = jitter
        self._passages = [_Passage([0.0] * station.width) for station in stations]
        self.used: list[tuple[float, float]] = []
        """When the consumer took each item, and when it was done with it."""
        for number in range(n):
            self._put(0, 0.0, number)

    def _put(self, stage: int, ready: float, number: int) -> float:
        """Pass the input `number` on from `ready` on; gives when the stage took it."""
        if stage == len(self.stations):
            took = max(ready, self.used[-1][1] if self.used else 0.0)
            self.used.append((took, took + self.consumer_s * self._jitter()))
            return took
        station, passage = self.stations[stage], self._passages[stage]
        took = max(ready, heapq.heappop(passage.free))
        if not station.is_fold:
            took = max(took, self._room(passage, station.ahead))
        if passage.calls:
            took = max(took, passage.calls[-1][0])
        ended = took + station.service_s * self._jitter()
        passage.calls.append((took, ended))
        if station.drops_every and number % station.drops_every == station.drops_every - 1:
            passage.dropped.append(ended)
        elif (number + 1) % station.joins == 0:
            for _ in range(station.splits):
                if station.is_fold:
                    ended = max(ended, self._room(passage, station.ahead))
                passage.ready = max(passage.ready, ended)
                passage.outputs.append(ended)
                passage.taken.append(self._put(stage + 1, passage.ready, len(passage.outputs) - 1))
        heapq.heappush(passage.free, ended)
        return took

    @staticmethod
    def _room(passage: _Passage, ahead: int) -> float:
        number = len(passage.taken)
        return passage.taken[number - ahead] if number >= ahead else 0.0

    def rate(self) -> float:
        """Items a second that the consumer was given in the second half."""
        half = len(self.used) // 2
        return (len(self.used) - 1 - half) / (self.used[-1][0] - self.used[half][0])

    def stats(self, at_s: float) -> Stats:
        """What a snapshot shows at that time."""
        stages = []
        for station, passage in zip(self.stations, self._passages, strict=True):
            meter = Meter()
            for began, ended in passage.calls:
                if ended <= at_s:
                    meter.call(0, began, ended)
            meter.out(sum(1 for each in passage.outputs if each <= at_s), 0)
            meter.computed(meter.busy_s * station.cpu_share)
            meter.dropped_items = sum(1 for each in passage.dropped if each <= at_s)
            one = StageStats.of(
                [meter],
                name=station.name,
                on=station.on,
                width=station.width,
                can_widen=not station.is_fold and station.on != "source",
                queued=0,
                ahead=station.ahead,
            )
            stages.append(one)
        took = sum(1 for began, _ in self.used if began <= at_s)
        busy_s = sum(min(ended, at_s) - began for began, ended in self.used if began <= at_s)
        consumer = ConsumerStats(items=took, busy_s=busy_s, waited_s=at_s - busy_s)
        return Stats(
            elapsed_s=at_s,
            stages=tuple(stages),
            consumer=consumer,
            queued_bytes=0,
            budget_bytes=1 << 20,
            cores=64,
        )

    def doubled(self, name: str) -> list[Station]:
        """The stations, that of this name twice as wide."""
        return [
            replace(station, width=2 * station.width) if station.name == name else station
            for station in self.stations
        ]
