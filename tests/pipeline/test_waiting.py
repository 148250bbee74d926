"""No wake-up is lost between a look and a sleep, at whichever moment the other side has done something."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from pipeline.waiting import Bell, LoopBell, Stopped, ThreadBell
from tests.pipeline.sources import within


def becomes_ready_while_one_looks(bell: Bell) -> Callable[[], bool]:
    """No at first; but by the time of the answer the other side has done it, and has rung for whoever waits."""
    looks = 0

    def ready() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            if bell.waiting:
                bell.ring()
            return False
        return True

    return ready


def test_a_thread_that_looks_just_before() -> None:
    bell = ThreadBell()
    with within(10):
        bell.wait(becomes_ready_while_one_looks(bell))
    assert not bell.waiting


def test_a_task_that_looks_just_before() -> None:
    async def wait() -> bool:
        bell = LoopBell()
        async with asyncio.timeout(10):
            await bell.wait(becomes_ready_while_one_looks(bell))
        return bell.waiting

    assert not asyncio.run(wait())


def test_a_task_may_be_rung_for_more_than_once() -> None:
    """By several who have all seen it waiting."""
    faults: list[object] = []

    async def wait() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        bell = LoopBell()
        rung = False

        def ring() -> None:
            nonlocal rung
            rung = True
            bell.ring()
            bell.ring()

        def ready() -> bool:
            if bell.waiting and not rung:
                threads.append(threading.Thread(target=ring))
                threads[-1].start()
                threads[-1].join()
                return False
            return rung

        threads: list[threading.Thread] = []
        async with asyncio.timeout(10):
            await bell.wait(ready)
        await asyncio.sleep(0)

    asyncio.run(wait())
    assert not faults


def test_a_stop_ends_a_wait_and_all_later_ones() -> None:
    bell, looked = ThreadBell(), threading.Event()

    def look() -> bool:
        looked.set()
        return False

    stopping = threading.Thread(target=lambda: looked.wait(10) and bell.stop())
    stopping.start()
    for _ in range(2):
        with within(10), pytest.raises(Stopped):
            bell.wait(look)
    stopping.join()
    bell.wait(lambda: True)


def test_a_wait_may_be_limited() -> None:
    bell = ThreadBell()
    with within(10):
        bell.wait(lambda: False, 0.01)
    assert not bell.waiting
