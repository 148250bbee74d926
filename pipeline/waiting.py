"""How one side of a window sleeps until the other has done something.

A bell has one waiter at a time and any number of ringers. There is no lock: a ringer first publishes what it did
and then reads `waiting`, while a waiter first raises `waiting` and then looks again; so one of the two always sees
the other. A waiter may wake for nothing, and looks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

_LOOK_AGAIN_S = 0.5


class Stopped(Exception):
    """The engine ends; raised out of the waits of its own threads."""


class Bell:
    """What either side rings; who waits is a thread or a task."""

    def __init__(self) -> None:
        self.waiting = False

    def ring(self) -> None:
        """Wake the waiter. From any thread; for nothing where nobody waits."""
        raise NotImplementedError


class ThreadBell(Bell):
    """The waiter is a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._rung: SimpleQueue[None] = SimpleQueue()
        self._stopped = False

    def ring(self) -> None:
        self.waiting = False  # or each further ring would come here until the waiter has run
        self._rung.put(None)

    def stop(self) -> None:
        """Let this wait and all later ones raise Stopped."""
        self._stopped = True
        self._rung.put(None)

    def wait(self, ready: Callable[[], bool], up_to_s: float = math.inf) -> None:
        """Return once `ready()`, or after `up_to_s`. Raises Stopped."""
        ends = time.monotonic() + up_to_s
        while True:
            self.waiting = True
            if ready() or (left_s := ends - time.monotonic()) <= 0:
                break
            if self._stopped:
                raise Stopped
            # A signal that arrives just before the wait does not end it: without a time limit, Ctrl-C in the main
            # thread would do nothing until the next item, which may never come.
            with contextlib.suppress(Empty):
                self._rung.get(timeout=min(left_s, _LOOK_AGAIN_S))
        self.waiting = False


class LoopBell(Bell):
    """The waiter is a task on the engine's loop; it is stopped by being cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._rung: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self.waiting = False
        if threading.get_ident() == self._thread:
            self._wake()
            return
        if self._loop is None:
            return  # nobody has ever waited
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # A closed loop has nobody left who waits.

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Return once `ready()`."""
        self._loop = loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        try:
            while True:
                self._rung = rung = loop.create_future()
                self.waiting = True
                if ready():
                    return
                await rung
        finally:
            self.waiting = False
            self._rung = None

    def _wake(self) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)
