"""A map on the loop: `width` tasks that take turns at the input and await their calls side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from time import perf_counter

from .errors import StageFailed, TimeLimit
from .intake import Intake, Tally
from .plan import Mapping
from .statistics import Meter
from .stopping import task_is_stopped
from .waiting import LoopBell
from .window import Slot

_NO_IO_S = 50e-6
"""Calls that take less wait for nothing: a task may take several of them, one after the other."""


class LoopMap:
    """Runs a `Mapping` whose place is the loop."""

    def __init__(
        self, spec: Mapping, intake: Intake, room: LoopBell, filled: LoopBell, meters: list[Meter]
    ) -> None:
        self._spec = spec
        self._intake = intake
        self._room = room
        self._filled = filled
        self._meters = meters
        self._turn = asyncio.Lock()

    def coroutines(self) -> list[Coroutine[object, object, None]]:
        """What the engine's task group runs."""
        return [self._work(meter) for meter in self._meters]

    async def _work(self, meter: Meter) -> None:
        tally = Tally()
        while slots := await self._admit(meter):
            await self._perform(slots, tally, meter)

    async def _admit(self, meter: Meter) -> list[Slot]:
        """The next calls, in order; none when the stage is over."""
        intake = self._intake
        async with self._turn:
            while not intake.over:
                if not intake.may_reserve():
                    intake.source.taker_pauses()
                    began = perf_counter()
                    await self._room.wait(intake.may_reserve)
                    meter.blocked(perf_counter() - began)
                if not intake.may_take():
                    intake.source.taker_pauses()
                    began = perf_counter()
                    await self._filled.wait(intake.may_take)
                    meter.starved(perf_counter() - began)
                    if not intake.may_reserve():  # of the input that has come, the output may be a large one
                        continue
                if slots := intake.admit(intake.most(_NO_IO_S)):
                    return slots
        return []

    async def _perform(self, slots: list[Slot], tally: Tally, meter: Meter) -> None:
        intake = self._intake
        calls, index = len(slots), slots[0].index
        # Small calls are timed together: looking at the clock would take longer than some of them.
        each = calls == 1 or meter.one_by_one
        first = began = perf_counter()
        slots.reverse()
        while slots:  # emptied, since what has been handed on must not be kept alive from here
            slot = slots.pop()
            try:
                value = await self._call(slot.value, meter)
            except BaseException as error:
                if task_is_stopped():
                    if isinstance(error, asyncio.CancelledError):
                        raise
                    # While cleaning up: nobody takes from the window any more.
                    raise StageFailed.of(
                        error, stage=self._spec.name, index=slot.index, value=slot.value
                    ) from error
                if not intake.failed(slot, error):
                    return
                meter.dropped()
            else:
                intake.done(slot, value, tally)
                del value
            if each:
                ended = perf_counter()
                meter.call(slot.index, began, ended)
                began = ended
            del slot
        ended = perf_counter()
        if not each:
            meter.calls(index, calls, first, ended)
        intake.took(calls, ended - first, tally, meter)

    async def _call(self, value: object, meter: Meter) -> object:
        attempts = 1
        while True:
            try:
                return await self._attempt(value)
            except Exception as error:
                retry = self._spec.retry
                if retry is None or not retry.again(error, attempts) or task_is_stopped():
                    raise
                meter.retried()
            await asyncio.sleep(retry.delay_s(attempts))
            attempts += 1

    async def _attempt(self, value: object) -> object:
        limit_s = self._spec.time_limit_s
        if limit_s is None:
            result = self._spec.function(value)
            return await result if isinstance(result, Awaitable) else result
        try:
            async with asyncio.timeout(limit_s) as limit:
                result = self._spec.function(value)
                return await result if isinstance(result, Awaitable) else result
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeLimit(f"the call did not return within {limit_s} s, and was cancelled") from error
