"""Started and stopped a thousand times, at random moments and in every way: nothing is left, nothing takes long."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline import Drop, Dropped, Item, PipelineError, Plan, Retry, Running, StageFailed, State, start
from tests.pipeline.process_functions import double as double_in_process
from tests.pipeline.process_functions import plus_one
from tests.pipeline.sources import (
    Batches,
    Broken,
    Count,
    Pieces,
    ShuffleBuffer,
    Transient,
    double,
    triple,
    within,
)


@dataclass(frozen=True)
class Left:
    """What a process holds that a plan may have left behind."""

    threads: frozenset[threading.Thread]
    descriptors: int
    children: frozenset[str]
    shared: int

    @classmethod
    def now(cls) -> Left:
        gc.collect(0)  # arrays in shared memory that hang on a cycle, of a traceback say
        return cls(
            threads=frozenset(threading.enumerate()),
            descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            children=frozenset(pid for task in Path("/proc/self/task").iterdir() for pid in _children(task)),
            shared=Path("/proc/self/maps").read_text().count("/memfd:"),
        )


def _children(task: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # of a thread that has just ended
        return (task / "children").read_text().split()
    return []


class Endless:
    """Numbers from 0 on, with a pause now and then."""

    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        source = Count(10**9, pauses=True)
        items = source.read(at)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()  # type: ignore[attr-defined]  # an async generator


class Arrays:
    async def read(self, at: State | None) -> AsyncIterator[Item[NDArray[np.float64]]]:
        for _ in range(10**9):
            yield Item(np.zeros(100_000), {})


class Ignored:
    def put(self, record: Dropped) -> None: ...


def breaks(x: int) -> int:
    if x > 200:
        raise Broken(f"{x}")
    return x


def breaks_for_long(x: int) -> int:
    if x % 50 == 49:
        raise Transient
    return x


def in_threads() -> Plan[int]:
    return Plan(Endless()).map(triple, width=3).map(abs, width=2).map(triple, width=1, name="last")


def on_the_loop() -> Plan[int]:
    return Plan(Endless()).map(double, width=8).map(abs, on="loop")


def with_folds() -> Plan[list[int]]:
    plan = Plan(Endless()).map(triple, width=2).fold(ShuffleBuffer(10, seed=1))
    return plan.fold(Pieces(2, lambda x: [x, x, x])).map(double, width=2).fold(Batches(5))


def that_fails() -> Plan[int]:
    return Plan(Endless()).map(double, width=2).map(breaks, width=3).fold(ShuffleBuffer(3, seed=1))


def that_drops() -> Plan[int]:
    return Plan(Endless()).map(breaks, width=3, on_error=Drop(Ignored(), at_most=10**9)).map(triple)


def that_waits_to_try_again() -> Plan[int]:
    retry = Retry(on=(Transient,), first_s=1000, most_s=1000)
    return Plan(Endless()).map(breaks_for_long, width=2, retry=retry)


def with_time_limits() -> Plan[int]:
    return Plan(Endless()).map(triple, width=2, time_limit_s=60).map(double, time_limit_s=60)


def that_ends() -> Plan[int]:
    return Plan(Count(20)).map(triple, width=2)


def in_processes() -> Plan[int]:
    return Plan(Endless()).map(double_in_process, width=2, on="process").map(triple)


def with_arrays_in_processes() -> Plan[NDArray[np.float64]]:
    return Plan(Arrays()).map(plus_one, on="process")


IN_THIS_PROCESS: list[Callable[[], Plan[object]]] = [
    in_threads,
    on_the_loop,
    with_folds,
    that_fails,
    that_drops,
    that_waits_to_try_again,
    with_time_limits,
    that_ends,
]
IN_OTHERS: list[Callable[[], Plan[object]]] = [in_processes, with_arrays_in_processes]


class Mistake(Exception):
    """Of the consumer's."""


def by_break(running: Running[object], after_s: float) -> None:
    moment = time.perf_counter() + after_s
    for number, _ in enumerate(running, 1):
        if time.perf_counter() >= moment or number == 40:  # one of the plans gives no more than 49
            break


def by_an_exception(running: Running[object], after_s: float) -> None:
    by_break(running, after_s)
    raise Mistake


def by_an_interrupt(running: Running[object], after_s: float) -> None:
    """Of whatever the consumer is at."""
    signal.setitimer(signal.ITIMER_REAL, max(1e-6, after_s))
    try:
        for _ in running:
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def by_close_in_another_thread(running: Running[object], after_s: float) -> None:
    closer = threading.Timer(after_s, running.close)
    closer.start()
    try:
        for _ in running:
            pass
    except PipelineError as error:
        if isinstance(error, StageFailed) or "read after close()" not in str(error):
            raise
    finally:
        closer.join()


Way: TypeAlias = Callable[[Running[object], float], None]
WAYS: list[Way] = [by_break, by_an_exception, by_an_interrupt, by_close_in_another_thread]


@pytest.fixture
def interrupts() -> Iterator[None]:
    """A timer's signal is Ctrl-C's."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.signal(signal.SIGALRM, before)


def stop_once(plan: Plan[object], way: Way, after_s: float, trace: Path | None) -> float:
    """Start, use for a while, leave; gives how long leaving took."""
    left_at = 0.0

    def use() -> None:
        nonlocal left_at
        with start(plan, budget_bytes=10**7, trace=trace) as running:
            try:
                way(running, after_s)
            finally:
                left_at = time.perf_counter()

    with contextlib.suppress(Mistake, KeyboardInterrupt, StageFailed):
        use()
    return time.perf_counter() - left_at


@pytest.mark.parametrize(("stops", "one_in"), [(200, 25), pytest.param(1_000, 8, marks=pytest.mark.slow)])
def test_nothing_is_left(stops: int, one_in: int, interrupts: None, tmp_path: Path) -> None:
    """No thread, process, descriptor or shared memory after any of them, and none takes more than a second to end."""
    chance = random.Random(stops)
    before = Left.now()
    longest = dict.fromkeys(("in this process", "in others"), 0.0)
    for number in range(stops):
        others = number % one_in == one_in - 1
        make = chance.choice(IN_OTHERS if others else IN_THIS_PROCESS)
        way = chance.choice(WAYS)
        after_s = chance.choice([0.0, chance.uniform(0, 0.002), chance.uniform(0, 0.3 if others else 0.02)])
        trace = tmp_path / "trace.json" if chance.random() < 0.1 else None
        what = f"stop {number}: a plan {make.__name__}, left {way.__name__} after {after_s * 1e3:.3f} ms"
        took = stop_once(make(), way, after_s, trace)
        assert Left.now() == before, what
        assert took < 1, what
        kind = "in others" if others else "in this process"
        longest[kind] = max(longest[kind], took)
    print(*(f"the longest {kind} took {took:.3f} s" for kind, took in longest.items()), sep="\n")


@pytest.mark.parametrize("time_limit_s", [None, 60.0], ids=["without a time limit", "with a time limit"])
def test_a_worker_ends_after_the_call_that_it_is_in(time_limit_s: float | None) -> None:
    """Calls that it has taken together, because they were short, are not all made before it ends."""
    slow, entered = threading.Event(), threading.Event()

    def slows_down(x: int) -> int:
        if slow.is_set():
            entered.set()
            time.sleep(0.2)
        return x

    plan = Plan(Endless(), ahead=64).map(slows_down, ahead=64, time_limit_s=time_limit_s)
    with within(30), start(plan) as running:
        for _ in range(20_000):
            next(running)
        slow.set()
        while not entered.is_set():
            next(running)
        left_at = time.perf_counter()
    assert time.perf_counter() - left_at < 0.9


def test_a_result_is_passed_on_before_the_next_call_has_returned() -> None:
    """Calls that a worker has taken together, because they were short, may wait for what is done with the first."""
    room = threading.Semaphore(20_000)

    def waits(x: int) -> int:
        assert room.acquire(timeout=5)
        return x

    with within(30), start(Plan(Count(20_100), ahead=64).map(waits, ahead=64)) as running:
        for item in running:
            if item.value >= 19_999:
                room.release()  # one more call for each item that has been used
    assert item.value == 20_099


@pytest.mark.parametrize("place", ["loop", "thread"])
def test_after_a_failure_no_further_call_is_made(place: Literal["loop", "thread"]) -> None:
    """Neither of those that were taken together with the one that failed."""
    for first in range(10_000, 10_005):
        calls: list[int] = []

        def fails(x: int, first: int = first, calls: list[int] = calls) -> int:
            calls.append(x)
            if x >= first:
                raise Broken
            return x

        plan = Plan(Count(20_000), ahead=64).map(fails, ahead=64, on=place)
        with start(plan) as running, pytest.raises(StageFailed, match=f"item {first}"):
            list(running)
        assert calls == [*range(first + 1)]
