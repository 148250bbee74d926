"""A map in threads: one task admits inputs in order, `width` threads call and fill the window themselves."""

from __future__ import annotations

from collections.abc import Coroutine
from queue import SimpleQueue
from threading import Thread
from types import CoroutineType
from typing import TypeAlias

from .errors import StageFailed
from .item import Item
from .plan import Mapping
from .window import End, LoopWindow, Slot, Window

_Call: TypeAlias = tuple[int, Slot, Item[object]]


class ThreadMap:
    """Runs a `Mapping` whose place is threads.

    The threads are daemons of our own, not an executor's: an executor costs a hundred µs a call, and its
    threads keep the interpreter from exiting.
    """

    def __init__(self, spec: Mapping, source: LoopWindow, out: Window) -> None:
        self._spec = spec
        self._in = source
        self._out = out
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._stopped = False
        self.threads = tuple(
            Thread(target=self._work, name=f"{spec.name}-{number}", daemon=True)
            for number in range(spec.width)
        )
        """Named after the stage; started and joined by the engine."""

    def coroutines(self) -> list[Coroutine[object, object, None]]:
        """What the engine's task group runs."""
        return [self._admit()]

    def stop(self) -> None:
        """Let each thread end after the call that it is in. From any thread."""
        self._stopped = True
        for _ in self.threads:
            self._calls.put(None)

    async def _admit(self) -> None:
        index = 0
        while True:
            slot = await self._out.reserve()
            entry = await self._in.take()
            if isinstance(entry, End):
                self._out.fill(slot, entry)
                return
            self._calls.put((index, slot, entry))
            del slot, entry  # what has been handed on must not be kept alive from here
            index += 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if not self._stopped:
                self._call(*call)
            del call  # or an idle thread would keep its last value alive

    def _call(self, index: int, slot: Slot, item: Item[object]) -> None:
        try:
            value = self._spec.function(item.value)
            if isinstance(value, CoroutineType):
                value.close()
                raise TypeError("the function gave a coroutine, which a thread cannot await: give on='loop'")
        except BaseException as error:  # noqa: BLE001 - whatever a function raises is the consumer's to see
            failure = StageFailed.of(error, stage=self._spec.name, index=index, value=item.value)
            self._out.fill(slot, End(failure))
        else:
            self._out.fill(slot, Item(value, item.resume))
