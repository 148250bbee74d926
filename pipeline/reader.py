"""The first stage: reads a source into its window, never further than the window and the budget have room."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import Protocol, runtime_checkable

from .budget import Budget, Claim, size_of
from .errors import StageFailed
from .item import Item, State
from .plan import Reading
from .resuming import from_source
from .statistics import Meter
from .stopping import task_is_stopped
from .waiting import LoopBell
from .window import VALUE, Slot, Window

_ACCOUNT_BYTES = 64 << 10
_ACCOUNT_ITEMS = 32


@runtime_checkable
class _Closable(Protocol):
    async def aclose(self) -> None: ...


class Reader:
    """Runs a `Reading` from the state `at`."""

    def __init__(
        self,
        spec: Reading,
        at: State | None,
        out: Window,
        budget: Budget,
        claim: Claim,
        meter: Meter,
        bell: LoopBell,
        *,
        stateful: bool,
    ) -> None:
        self._spec = spec
        self._at = at
        self._out = out
        self._budget = budget
        self._claim = claim
        self._meter = meter
        self._bell = bell
        self._stateful = stateful
        self._index = 0
        self._item_bytes = 0
        self._new_items = 0
        self._new_bytes = 0
        self._began = 0.0
        self._most = 1 if meter.one_by_one else _ACCOUNT_ITEMS
        self._failures = 0

    def coroutines(self) -> list[Coroutine[object, object, None]]:
        """What the engine's task group runs."""
        return [self._run()]

    async def _run(self) -> None:
        error: StageFailed | None = None
        try:
            while not await self._read_or_wait():
                pass
        except BaseException as raised:
            if task_is_stopped():
                if isinstance(raised, asyncio.CancelledError):
                    raise
                raise self._failure(raised) from raised  # while closing: nobody takes any more
            error = self._failure(raised)
        if self._new_items:
            self._account()
        if not self._out.has_room():
            await self._bell.wait(self._out.has_room)
        self._out.push(Slot.last(error, self._index))

    async def _read_or_wait(self) -> bool:
        """Read to the end: True. After a transient error wait as long as it takes to try again: False."""
        try:
            await self._read()
        except Exception as error:
            if self._new_items:
                self._account()  # an item was read since: the attempts begin anew
            retry = self._spec.retry
            self._failures += 1
            if task_is_stopped() or retry is None or not retry.again(error, self._failures):
                raise
            self._meter.retried()
            await asyncio.sleep(retry.delay_s(self._failures))
            return False
        return True

    async def _read(self) -> None:
        if not self._may_read():
            await self._wait()
        self._began = perf_counter()
        out, stateful, most = self._out, self._stateful, self._most
        items = self._spec.source.read(self._at)
        try:
            async for item in items:
                if not isinstance(item, Item):
                    raise TypeError(f"a source must yield Items, got {type(item).__name__}")
                value, self._at = item
                nbytes = size_of(value)
                out.push(
                    Slot(VALUE, self._index, value, from_source(self._at) if stateful else self._at, nbytes)
                )
                self._index += 1
                self._new_items += 1
                self._new_bytes += nbytes
                del item, value  # what has been handed on must not be kept alive from here
                # Items that come faster than they are taken are accounted for, and timed, together.
                if self._new_items >= most or self._new_bytes >= _ACCOUNT_BYTES or out.filled_bell.waiting:
                    self._account()
                # Room comes first, so that nothing is read that there is no room for. Over the budget by what is
                # not yet accounted for is little beside any budget.
                if not out.has_room() or (self._new_items == 0 and not self._may_read()):
                    await self._wait()
        finally:
            if isinstance(items, _Closable):
                await items.aclose()

    def _account(self) -> None:
        """Tell what has been read: an item at a time would cost a lock each, and two looks at the clock."""
        ended = perf_counter()
        count, self._new_items = self._new_items, 0
        nbytes, self._new_bytes = self._new_bytes, 0
        if count == 1:
            self._meter.call(self._index - 1, self._began, ended)
        else:
            self._meter.calls(self._index - count, count, self._began, ended)
        self._began = ended
        self._item_bytes = nbytes // count
        self._budget.add(nbytes)
        self._meter.out(count, nbytes)
        self._failures = 0

    def _may_read(self) -> bool:
        return self._out.has_room() and self._claim.allows(self._item_bytes)

    async def _wait(self) -> None:
        if self._new_items:
            self._account()
        began = perf_counter()
        await self._bell.wait(self._may_read)
        self._meter.blocked(perf_counter() - began)
        self._began = perf_counter()

    def _failure(self, error: BaseException) -> StageFailed:
        return StageFailed.of(error, stage=self._spec.name, index=self._index)
