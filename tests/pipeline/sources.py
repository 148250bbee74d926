"""Sources and maps that the engine's tests share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from threading import Event

from pipeline import Item, State


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
