"""The hand-off between two stages: an ordered window of slots.

A stage *reserves* a slot in its output window before it takes the input that will fill it, and *fills* it
when the result is there, in any order and from any thread. The next stage *takes* the oldest slot once it is
filled. So order costs nothing, and a window of `ahead` slots bounds running calls and waiting results alike.

There is no per-item wake-up: a side that waits is woken once and then finds all that has come together in the
meantime. That is what keeps a hop cheap, with µs between items on the loop and tens of µs between threads.

Each window has one reserving task and one taker. The flags that tell one side that the other waits are read
without a lock: a side first publishes (fills or removes a slot) and then reads the other's flag, while a side
that goes to wait first raises its flag and then looks again; so one of the two always sees the other.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .errors import PipelineError
from .item import Item


@dataclass(frozen=True, slots=True)
class End:
    """The last entry of every window: the items are over, or a stage failed here."""

    error: PipelineError | None = None


Entry: TypeAlias = Item[object] | End

_SIGNALS_EVERY_S = 0.5


class Slot:
    """A place in a window's order; empty until it is filled."""

    __slots__ = ("entry",)

    def __init__(self) -> None:
        self.entry: Entry | None = None


class Window:
    """Slots in order, at most `ahead`; the two kinds of taker are the subclasses."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead: int) -> None:
        self._loop = loop
        self._ahead = ahead
        self._slots: deque[Slot] = deque()
        self._room: asyncio.Future[None] | None = None
        self._room_wanted = False
        self._taker_waits = False

    async def reserve(self) -> Slot:
        """The next slot in order, once there is room for it. On the loop, by one task at a time."""
        if len(self._slots) >= self._ahead:
            await self._wait_for_room()
        slot = Slot()
        self._slots.append(slot)
        return slot

    def fill(self, slot: Slot, entry: Entry) -> None:
        """Fill a reserved slot, once. From any thread."""
        slot.entry = entry
        if self._taker_waits and self._ready():
            self._wake_taker()

    async def _wait_for_room(self) -> None:
        while len(self._slots) >= self._ahead:
            self._room = room = self._loop.create_future()
            self._room_wanted = True
            try:
                if len(self._slots) >= self._ahead:
                    await room
            finally:
                self._room_wanted = False
                self._room = None

    def _wake_for_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _ready(self) -> bool:
        try:
            return self._slots[0].entry is not None
        except IndexError:  # no slots; asking for their number first would race with the taker
            return False

    def _wake_taker(self) -> None:
        raise NotImplementedError

    def _post(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # A closed loop has nobody left who waits.


class LoopWindow(Window):
    """A window whose taker is a task on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead: int) -> None:
        super().__init__(loop, ahead)
        self._head: asyncio.Future[None] | None = None
        self._loop_thread = 0

    async def take(self) -> Entry:
        """The oldest entry, once it is filled."""
        while not self._ready():
            await self._wait_for_head()
        entry = self._slots.popleft().entry
        assert entry is not None
        self._wake_for_room()
        return entry

    async def _wait_for_head(self) -> None:
        self._loop_thread = threading.get_ident()
        self._head = head = self._loop.create_future()
        self._taker_waits = True
        try:
            if not self._ready():
                await head
        finally:
            self._taker_waits = False
            self._head = None

    def _wake_taker(self) -> None:
        if threading.get_ident() == self._loop_thread:
            self._wake_for_head()
        else:
            self._taker_waits = False  # or each thread would post until the loop has run
            self._post(self._wake_for_head)

    def _wake_for_head(self) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_result(None)


class Outlet(Window):
    """The last window: its taker is the consumer, in a thread of its own.

    The reserving side is woken only when slots have come free in number, but never so late that fewer than
    `busy` slots are left: that many calls can be running.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead: int, busy: int) -> None:
        super().__init__(loop, ahead)
        self._low = max(ahead // 2, min(busy, ahead - 1))
        self._changed = threading.Condition()
        self._aborted: PipelineError | None = None

    def take(self) -> Entry:
        """The oldest entry, once it is filled or the outlet is aborted. In the consumer's thread."""
        if self._aborted is not None or not self._ready():
            self._wait()
        entry = self._slots.popleft().entry
        assert entry is not None
        if self._room_wanted and len(self._slots) <= self._low:
            self._room_wanted = False
            self._post(self._wake_for_room)
        return entry

    def abort(self, error: PipelineError) -> None:
        """Let every `take` raise `error` from now on. From any thread."""
        with self._changed:
            self._aborted = error
            self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            while True:
                self._taker_waits = True
                if self._aborted is not None or self._ready():
                    break
                # A signal that arrives just before the wait does not end it: without a time limit, Ctrl-C would
                # do nothing until the next item, which may never come.
                self._changed.wait(_SIGNALS_EVERY_S)
            self._taker_waits = False
        if self._aborted is not None:
            raise self._aborted

    def _wake_taker(self) -> None:
        with self._changed:
            self._taker_waits = False  # or each further fill would come here until the consumer has run
            self._changed.notify()
