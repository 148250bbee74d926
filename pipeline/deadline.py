"""Time limits on calls that nothing can interrupt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from time import perf_counter

from .window import Slot


class Call:
    """One call under a time limit: settled by whoever claims it first, its worker or the watch."""

    __slots__ = ("_claimed", "began", "slot")

    def __init__(self, slot: Slot, began: float) -> None:
        self.slot = slot
        self.began = began
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        """Whether the call is the caller's to settle; true once."""
        return self._claimed.acquire(blocking=False)


async def watch(calls: Callable[[], Iterable[Call]], limit_s: float, expire: Callable[[Call], None]) -> None:
    """Claim each of the `calls` that takes longer than `limit_s`, and `expire` it. Runs until it is cancelled."""
    while True:
        now = perf_counter()
        first = now
        for call in calls():
            if now - call.began >= limit_s:
                if call.claim():
                    expire(call)
            else:
                first = min(first, call.began)
        # A call that begins while this sleeps ends no sooner than the sleep does.
        await asyncio.sleep(first + limit_s - now)
