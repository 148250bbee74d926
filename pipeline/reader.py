"""The first stage: reads a source into its window, never further than the window has room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Protocol, runtime_checkable

from .errors import StageFailed
from .item import Item, State
from .plan import Reading
from .stopping import task_is_stopped
from .window import End, Window


@runtime_checkable
class _Closable(Protocol):
    async def aclose(self) -> None: ...


class Reader:
    """Runs a `Reading` from the state `at`."""

    def __init__(self, spec: Reading, at: State | None, out: Window) -> None:
        self._spec = spec
        self._at = at
        self._out = out
        self._index = 0

    def coroutines(self) -> list[Coroutine[object, object, None]]:
        """What the engine's task group runs."""
        return [self._run()]

    async def _run(self) -> None:
        slot = await self._out.reserve()
        try:
            items = self._spec.source.read(self._at)
            try:
                async for item in items:
                    if not isinstance(item, Item):
                        raise TypeError(f"a source must yield Items, got {type(item).__name__}")
                    self._out.fill(slot, item)
                    self._index += 1
                    del item  # what has been handed on must not be kept alive from here
                    # The slot comes first, so that nothing is read that the window has no room for.
                    slot = await self._out.reserve()
            finally:
                await _close(items)
        except BaseException as error:
            if task_is_stopped():
                if isinstance(error, asyncio.CancelledError):
                    raise
                raise self._failure(error) from error  # while closing: nobody takes any more
            self._out.fill(slot, End(self._failure(error)))
        else:
            self._out.fill(slot, End())

    def _failure(self, error: BaseException) -> StageFailed:
        return StageFailed.of(error, stage=self._spec.name, index=self._index)


async def _close(items: AsyncIterator[Item[object]]) -> None:
    if isinstance(items, _Closable):
        await items.aclose()
