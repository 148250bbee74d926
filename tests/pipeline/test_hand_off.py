"""Hops between two stages: who wakes whom, and what becomes of the calls that a worker takes together."""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from pipeline import Drop, Dropped, Plan, Retry, StageFailed, start
from pipeline.waiting import LoopBell, ThreadBell
from tests.pipeline.sources import Broken, Count, Kept, Pieces, Steps, Transient, within


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set once a stage waits for room: it has looked in vain after it had asked to be woken."""
    seen = threading.Event()
    wait_in_thread, wait_on_loop = ThreadBell.wait, LoopBell.wait

    def watched(ready: Callable[[], bool]) -> Callable[[], bool]:
        def looked() -> bool:
            is_ready = ready()
            if not is_ready and getattr(ready, "__name__", "") in ("may_reserve", "_may_read"):
                seen.set()
            return is_ready

        return looked

    def wait(bell: ThreadBell, ready: Callable[[], bool], up_to_s: float = math.inf) -> None:
        wait_in_thread(bell, watched(ready), up_to_s)

    async def wait_in_task(bell: LoopBell, ready: Callable[[], bool]) -> None:
        await wait_on_loop(bell, watched(ready))

    monkeypatch.setattr(ThreadBell, "wait", wait)
    monkeypatch.setattr(LoopBell, "wait", wait_in_task)
    with within(10):
        yield seen
        seen.set()


def then(plan: Plan[int], taker: str, function: Callable[[int], int], ahead: int = 1) -> Plan[int]:
    """`plan` with a stage behind it that calls `function`, one value at a time."""

    async def on_the_loop(x: int) -> int:
        return await asyncio.to_thread(function, x)

    def in_a_list(x: int) -> list[int]:
        return [function(x)]

    if taker == "fold":
        return plan.fold(Pieces(1, in_a_list), ahead=ahead)
    return plan.map(on_the_loop if taker == "loop" else function, ahead=ahead)


@pytest.mark.parametrize("ahead", [1, 8])
@pytest.mark.parametrize("taker", ["fold", "thread", "loop", "consumer"])
def test_a_free_place_is_used_while_the_taker_waits(taker: str, ahead: int, no_room: threading.Event) -> None:
    """Less than half of the window is free; the oldest call in it returns only once the next one has begun.

    The taker waits for room itself, or for that call.
    """
    has_begun = threading.Event()

    def call(x: int) -> int:
        if x == 10:
            has_begun.set()
        if x == 3:
            assert has_begun.wait(timeout=20)
        return x

    def hold(x: int) -> int:
        assert no_room.wait(timeout=20)
        return x

    calls = Plan(Count(11)).map(call, width=2, ahead=8)
    plan = calls if taker == "consumer" else then(calls, taker, hold, ahead)
    with start(plan) as running:
        hold(0)
        assert len(list(running)) == 11


@pytest.mark.parametrize("taker", ["fold", "thread", "loop"])
def test_a_free_place_is_used_while_the_taker_works(taker: str, no_room: threading.Event) -> None:
    """It takes what makes half of the window free, and returns from that only once the place is filled again."""
    source = Steps(9)

    def call(x: int) -> int:
        if x == 0:
            assert no_room.wait(timeout=20)
        if x == 1:
            source.wait_until_read(4)
        return x

    with start(then(Plan(source, ahead=2), taker, call)) as running:
        assert len(list(running)) == 9


@pytest.mark.parametrize("place", ["thread", "loop"])
def test_calls_taken_together_find_room_for_all_of_them(place: Literal["thread", "loop"]) -> None:
    """However little of the window is left when a worker looks."""
    made = taken = worst = 0
    full = threading.Event()

    def call(x: int) -> int:
        nonlocal made, worst
        made += 1
        worst = max(worst, made - taken)
        if made - taken == 63:
            full.set()
        return x

    with within(20), start(Plan(Count(10_000)).map(call, on=place, ahead=63)) as running:
        while True:
            if taken % 40 == 0 and taken < 9_900:
                assert full.wait(10)
                full.clear()
            taken += 1  # before next(): what it takes makes room at once
            if next(running, None) is None:
                break
    assert made == 10_000
    assert worst == 63


@pytest.mark.parametrize("place", ["thread", "loop"])
def test_as_many_calls_as_the_stage_is_wide_are_in_flight(place: str) -> None:
    """Three calls can only return once all three have begun."""
    on_the_loop, in_threads = asyncio.Barrier(3), threading.Barrier(3)

    async def meet(x: int) -> int:
        await on_the_loop.wait()
        return x

    def meet_in_threads(x: int) -> int:
        in_threads.wait(timeout=20)
        return x

    plan = Plan(Count(30), ahead=1).map(meet if place == "loop" else meet_in_threads, width=3, ahead=3)
    with within(10), start(plan) as running:
        assert [item.value for item in running] == [*range(30)]


def but_not_109(x: int) -> int:
    if x == 109:
        raise Broken
    return x


@pytest.mark.parametrize("retry", [None, Retry(on=(Transient,))], ids=["once", "with retries"])
@pytest.mark.parametrize("place", ["thread", "loop", "process"])
@pytest.mark.parametrize("width", [1, 2])
def test_one_of_many_calls_taken_together_fails(
    width: int, place: Literal["thread", "loop", "process"], retry: Retry | None
) -> None:
    """What comes before it is delivered and, where it is dropped, what comes after it too."""
    plan = Plan(Count(200), ahead=200)
    kept: Kept[Dropped] = Kept()
    fails = plan.map(but_not_109, on=place, width=width, ahead=200, retry=retry)
    drops = plan.map(
        but_not_109, on=place, width=width, ahead=200, retry=retry, on_error=Drop(kept, at_most=1)
    )
    with within(20), start(fails) as running:
        assert [next(running).value for _ in range(109)] == [*range(109)]
        with pytest.raises(StageFailed, match="failed at item 109: Broken"):
            next(running)
    with within(20), start(drops) as running:
        assert [item.value for item in running] == [x for x in range(200) if x != 109]
    assert [record.value for record in kept.values] == [109]


class Buffer:
    """Something that can be seen to die."""


def test_a_result_may_die_before_the_next_call_has_returned() -> None:
    """Of calls that a worker takes together too."""
    died = threading.Semaphore(1)

    def make(_: int) -> Buffer:
        assert died.acquire(timeout=5)
        buffer = Buffer()
        weakref.finalize(buffer, died.release)
        return buffer

    with within(20), start(Plan(Count(1_000)).map(make)) as running:
        while next(running, None) is not None:
            pass
