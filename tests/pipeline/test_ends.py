"""However the block is left, every task and thread ends, soon, and sources are closed."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pipeline import AbandonedThread, Item, PipelineError, Plan, State, start
from tests.pipeline.sources import Count, double, triple

FDS = Path("/proc/self/fd") if Path("/proc/self/fd").exists() else Path("/dev/fd")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before, fds = set(threading.enumerate()), sum(1 for _ in FDS.iterdir())
    yield
    left = set(threading.enumerate()) - before
    assert not left
    assert sum(1 for _ in FDS.iterdir()) == fds


def plan_of(source: Count) -> Plan[int]:
    return Plan(source).map(double, width=2).map(triple, width=3).map(double)


class Endless:
    """Gives `first` items, then waits for ever."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.closed = False
        self.waits = threading.Event()

    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        try:
            for i in range(self.first):
                yield Item(i, {})
            self.waits.set()
            await self._wait()
        finally:
            self.closed = True

    async def _wait(self) -> None:
        await asyncio.get_running_loop().create_future()


def test_two_hundred_starts_and_stops() -> None:
    random_ = random.Random(0)
    source = Count(60, pauses=True)
    for _ in range(200):
        stop_at = random_.choice([0, 0, 1, random_.randrange(60), 60, 61])
        with start(plan_of(source)) as running:
            for number, _item in enumerate(running, 1):
                if number >= stop_at:
                    break
    assert source.opened == source.closed


def test_leaving_takes_little_time() -> None:
    source = Endless(5)
    with start(Plan(source).map(triple, width=4)) as running:
        next(running)
        begun = time.monotonic()
    assert time.monotonic() - begun < 0.9
    assert source.closed or not source.waits.is_set()


def test_an_exception_in_the_block_passes() -> None:
    source = Endless(5)

    def use() -> None:
        with start(Plan(source)) as running:
            next(running)
            source.waits.wait(10)
            print(1 // 0)

    with pytest.raises(ZeroDivisionError):
        use()
    assert source.closed


def test_keyboard_interrupt_while_the_consumer_waits() -> None:
    class Interrupting(Endless):
        async def _wait(self) -> None:
            await asyncio.to_thread(self.all_used.wait)
            os.kill(os.getpid(), signal.SIGINT)
            await super()._wait()

    source = Interrupting(3)
    source.all_used = threading.Event()
    used = []

    def use() -> None:
        with start(Plan(source).map(triple, width=2)) as running:
            for item in running:
                used.append(item.value)
                if len(used) == 3:
                    source.all_used.set()

    with pytest.raises(KeyboardInterrupt):
        use()
    assert used == [0, 3, 6]
    assert source.closed


def test_close_is_idempotent_and_final() -> None:
    running = start(plan_of(Count(60)))
    next(running)
    running.close()
    running.close()
    with pytest.raises(PipelineError, match=r"read after close\(\)"):
        next(running)


def test_close_from_another_thread_wakes_the_consumer() -> None:
    source = Endless(0)
    with start(Plan(source)) as running:
        closer = threading.Thread(target=lambda: source.waits.wait(10) and running.close())
        closer.start()
        with pytest.raises(PipelineError, match=r"read after close\(\)"):
            next(running)
        closer.join()
    assert source.closed


def test_a_function_that_does_not_return_is_abandoned_and_named() -> None:
    entered, release = threading.Event(), threading.Event()

    def stuck(x: int) -> int:
        entered.set()
        release.wait(30)
        return x

    running = start(Plan(Count(9)).map(stuck))
    assert entered.wait(10)
    begun = time.monotonic()
    with pytest.warns(AbandonedThread, match=r"left behind: stuck-0$"):
        running.close()
    assert time.monotonic() - begun < 2
    release.set()
    for thread in threading.enumerate():
        if thread.name == "stuck-0":
            thread.join()


def test_dropped_without_close_everything_ends() -> None:
    running = start(plan_of(Count(1000)))
    next(running)
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    del running
    gc.collect()
    for thread in threads:
        thread.join(10)


def test_values_die_with_their_last_user() -> None:
    """Buffers can be reused by their reference count: an idle stage must not hold on to what it passed on."""

    class Buffer:
        pass

    dead = [threading.Event() for _ in range(3)]
    source = Endless(3)

    def make(i: int) -> Buffer:
        buffer = Buffer()
        weakref.finalize(buffer, dead[i].set)
        return buffer

    async def on_the_loop(buffer: Buffer) -> Buffer:
        return buffer

    plan = Plan(source).map(make, width=2).map(on_the_loop, width=2).map(lambda buffer: buffer, width=2)
    with start(plan.map(on_the_loop, name="last")) as running:
        for _ in range(3):
            next(running)
        assert all(event.wait(5) for event in dead)


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    really_start = threading.Thread.start

    def start_thread(thread: threading.Thread) -> None:
        if thread.name == "triple-2":
            raise RuntimeError("can't start new thread")
        really_start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_thread)
    with pytest.raises(PipelineError, match="could not start 4 threads: can't start new thread"):
        start(Plan(Count(5)).map(triple, width=3))
    for thread in threading.enumerate():
        if thread.name.startswith("triple"):
            thread.join(10)


def test_a_loop_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", refuse)
    with (
        pytest.raises(PipelineError, match=r"could not make an event loop: .*Too many open files") as error,
        start(Plan(Count(5)).map(triple)) as running,
    ):
        next(running)
    assert isinstance(error.value.__cause__, OSError)


@pytest.mark.parametrize("state", ["waiting", "calling", "dropped", "in executor"])
def test_interpreter_exits_with_the_pipeline_alive(state: str) -> None:
    """No hang, and nothing on stderr, where warnings are shown."""
    program = f"""
import asyncio, threading
from pipeline import Item, Plan, start

entered = threading.Event()

class Endless:
    async def read(self, at):
        yield Item(0, {{}})
        if {state!r} == "in executor":
            await asyncio.to_thread(len, ())
        await asyncio.get_running_loop().create_future()

def stuck(x):
    if {state!r} == "calling":
        entered.set()
        threading.Event().wait()
    return x

running = start(Plan(Endless()).map(stuck))
if {state!r} == "calling":
    entered.wait()
else:
    assert next(running).value == 0
if {state!r} == "dropped":
    del running
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


class Gatherer:
    """A fold whose every accept takes a while, and that gives nothing."""

    def accept(self, x: int) -> None:
        threading.Event().wait(0.05)

    def emit(self) -> None:
        return None

    finish = emit

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        pass


@pytest.mark.parametrize("kind", ["map", "fold"])
def test_what_waits_for_a_busy_thread_is_not_worked_off_when_the_plan_is_left(kind: str) -> None:
    """64 inputs of 50 ms wait, and there is room for their outputs: none but the call that runs is made."""
    called: list[int] = []

    def slow(x: int) -> int:
        called.append(x)
        threading.Event().wait(0.05)
        return x

    source = Count(64)
    plan = Plan(source).map(slow) if kind == "map" else Plan(source).fold(Gatherer())
    running = start(plan)
    assert source.all_read.wait(10)
    begun = time.monotonic()
    running.close()
    assert time.monotonic() - begun < 0.9
    assert len(called) < 40
