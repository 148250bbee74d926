"""A map on the loop: `width` tasks that take turns at the input and await their calls side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine

from .errors import StageFailed
from .item import Item
from .plan import Mapping
from .stopping import task_is_stopped
from .window import End, LoopWindow, Slot, Window


class LoopMap:
    """Runs a `Mapping` whose place is the loop."""

    def __init__(self, spec: Mapping, source: LoopWindow, out: Window) -> None:
        self._spec = spec
        self._in = source
        self._out = out
        self._turn = asyncio.Lock()
        self._admitted = 0
        self._ended = False

    def coroutines(self) -> list[Coroutine[object, object, None]]:
        """What the engine's task group runs."""
        return [self._work() for _ in range(self._spec.width)]

    async def _work(self) -> None:
        while True:
            async with self._turn:  # so that slots and inputs are paired in order
                if self._ended:
                    return
                slot = await self._out.reserve()
                entry = await self._in.take()
                if isinstance(entry, End):
                    self._ended = True
                    self._out.fill(slot, entry)
                    return
                index = self._admitted
                self._admitted += 1
            await self._call(slot, entry, index)
            del slot, entry  # what has been handed on must not be kept alive from here

    async def _call(self, slot: Slot, item: Item[object], index: int) -> None:
        try:
            value = self._spec.function(item.value)
            if isinstance(value, Awaitable):
                value = await value
        except BaseException as error:
            failure = StageFailed.of(error, stage=self._spec.name, index=index, value=item.value)
            if task_is_stopped():
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise failure from error  # while cleaning up: nobody takes from the window any more
            self._ended = True
            self._out.fill(slot, End(failure))
        else:
            self._out.fill(slot, Item(value, item.resume))
