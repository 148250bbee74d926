"""Sources, maps and folds that the engine's tests share; imports little, since worker processes import it too."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from types import FrameType
from typing import Generic, TypeVar, cast

import pipeline.waiting
from pipeline import JSON, Item, State

T = TypeVar("T")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail where the block hangs. In the main thread.

    The engine's threads look again twice a second, which would turn a wake-up that got lost into a short delay: here
    they don't.
    """

    def ring(number: int, frame: FrameType | None) -> None:
        names = sorted(thread.name for thread in threading.enumerate())
        raise AssertionError(f"still not done after {seconds} s; threads: {', '.join(names)}")

    look_again_s = pipeline.waiting._LOOK_AGAIN_S
    pipeline.waiting._LOOK_AGAIN_S = 10 * seconds
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        pipeline.waiting._LOOK_AGAIN_S = look_again_s


class Count:
    """0, 1, 2, … below `n`; counts what was read, and whether it was closed."""

    def __init__(self, n: int, *, pauses: bool = False) -> None:
        self.n = n
        self.pauses = pauses
        self.read_count = 0
        self.opened = 0
        self.closed = 0
        self.all_read = Event()

    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        first = 0 if at is None else at["next"]
        assert isinstance(first, int)
        self.opened += 1
        try:
            for i in range(first, self.n):
                if self.pauses and i % 3 == 0:
                    await asyncio.sleep(0)
                self.read_count += 1
                yield Item(i, {"next": i + 1})
            self.all_read.set()
        finally:
            self.closed += 1


class Steps(Count):
    """A source that says when it has read, and nothing more is coming for now."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.read_so_far = threading.Condition()

    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        async for item in super().read(at):
            with self.read_so_far:
                self.read_so_far.notify_all()
            yield item

    def wait_until_read(self, count: int) -> None:
        with self.read_so_far:
            assert self.read_so_far.wait_for(lambda: self.read_count >= count, timeout=10)


@dataclass
class Kept(Generic[T]):
    """A sink that keeps what it is given."""

    values: list[T] = field(default_factory=list)

    def put(self, value: T, /) -> None:
        self.values.append(value)


class TwoArguments(Exception):
    """Cannot be rebuilt from its message."""

    exit_code = 2

    def __init__(self, path: str, row: int) -> None:
        super().__init__(f"{path} is broken in row {row}")
        self.provenance = f"{path}:{row}"


async def double(x: int) -> int:
    """On the loop, finishing out of order."""
    for _ in range(x % 4):
        await asyncio.sleep(0)
    return 2 * x


def triple(x: int) -> int:
    """In a thread, finishing out of order."""
    if x % 3 == 0:
        random.Random(x).randbytes(20_000)
    return 3 * x


class Transient(Exception):
    """An error that is gone when one tries again."""


class Broken(Exception):
    """An error that stays; pickles."""


class Flaky(Count):
    """Raises Transient before item i as often as `times` says, then goes on; remembers where it was opened."""

    def __init__(self, n: int, times: Mapping[int, int], *, pauses: bool = False) -> None:
        super().__init__(n, pauses=pauses)
        self.left = dict(times)
        self.opened_at: list[JSON] = []

    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        self.opened_at.append(None if at is None else at["next"])
        async for item in super().read(at):
            if self.left.get(item.value, 0):
                self.left[item.value] -= 1
                raise Transient(f"item {item.value}")
            yield item


class Shuffled:
    """The numbers below `n` in an order that the seed alone decides."""

    def __init__(self, n: int, seed: int) -> None:
        self.order = random.Random(seed).sample(range(n), n)

    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        first = 0 if at is None else cast("int", at["next"])
        for place in range(first, len(self.order)):
            yield Item(self.order[place], {"next": place + 1})


@dataclass
class Step:
    """A map's function: the value alone decides what it gives and whether it fails, chance how long it takes."""

    salt: int
    slow: bool
    transient: bool
    breaks_one_in: int | None
    failed: Counter[int] = field(default_factory=Counter)

    def __call__(self, value: int) -> int:
        if self.slow and random.random() < 0.3:
            random.randbytes(random.randrange(1, 30_000))
        return self._given(value)

    async def on_the_loop(self, value: int) -> int:
        if self.slow:
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
        return self._given(value)

    def _given(self, value: int) -> int:
        chance = mixed(self.salt, value)
        # A value may be with several calls at once, which then share the count: none of them sees more than two.
        if self.transient and chance % 5 == 0 and self.failed[value] < 2:
            self.failed[value] += 1
            raise Transient(f"{value}, for a while")
        if self.breaks_one_in is not None and chance // 5 % self.breaks_one_in == 0:
            raise Broken(f"{value} cannot be mapped")
        return chance


class Batches:
    """Joins: lists of `size` values, and one of what is left."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.carry: list[int] = []

    def accept(self, value: int, /) -> None:
        self.carry.append(value)

    def emit(self) -> list[int] | None:
        return self._give() if len(self.carry) >= self.size else None

    def finish(self) -> list[int] | None:
        return self._give() if self.carry else None

    def state(self) -> State:
        return {"carry": cast("JSON", [*self.carry])}

    def restore(self, state: State) -> None:
        self.carry = [*cast("list[int]", state["carry"])]

    def _give(self) -> list[int]:
        batch, self.carry = self.carry[: self.size], self.carry[self.size :]
        return batch


class Pieces:
    """Joins and splits: input x gives `pieces(x)`; they go out in groups of `size`, and at the end one by one."""

    def __init__(self, size: int, pieces: Callable[[int], list[int]]) -> None:
        self.size = size
        self.pieces = pieces
        self.carry: list[int] = []

    def accept(self, value: int, /) -> None:
        self.carry += self.pieces(value)

    def emit(self) -> int | None:
        return self._give(self.size) if len(self.carry) >= self.size else None

    def finish(self) -> int | None:
        return self._give(1) if self.carry else None

    def state(self) -> State:
        return {"carry": cast("JSON", [*self.carry])}

    def restore(self, state: State) -> None:
        self.carry = [*cast("list[int]", state["carry"])]

    def _give(self, size: int) -> int:
        group, self.carry = self.carry[:size], self.carry[size:]
        return mixed(*group)


class ShuffleBuffer:
    """Gives one of the `size` values that it holds for each further one; the draw depends on how many came before."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.held: list[int] = []
        self.given = 0

    def accept(self, value: int, /) -> None:
        self.held.append(value)

    def emit(self) -> int | None:
        return self._draw() if len(self.held) > self.size else None

    def finish(self) -> int | None:
        return self._draw() if self.held else None

    def state(self) -> State:
        return {"held": cast("JSON", [*self.held]), "given": self.given}

    def restore(self, state: State) -> None:
        self.held = [*cast("list[int]", state["held"])]
        self.given = cast("int", state["given"])

    def _draw(self) -> int:
        place = mixed(self.seed, self.given) % len(self.held)
        self.given += 1
        return self.held.pop(place)


def mixed(*numbers: int) -> int:
    """A number below 2^32 that depends on all of the numbers and on their order, in every process alike."""
    return zlib.crc32(repr(numbers).encode())
