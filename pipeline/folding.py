"""A fold at work: one thread that feeds it, takes what it emits, and gives each output the state to resume from."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Coroutine
from time import perf_counter, thread_time

from .budget import Budget, Claim, size_of
from .errors import StageFailed
from .item import State
from .plan import Folding
from .resuming import stage_part, upstream_part, with_stage
from .statistics import Meter
from .waiting import Stopped, ThreadBell
from .window import END, VALUE, Slot, Window


class FoldThread:
    """Runs a `Folding` from the state `at`; `before` are the stateful stages upstream."""

    def __init__(
        self,
        spec: Folding,
        at: State | None,
        before: tuple[str, ...],
        source: Window,
        out: Window,
        budget: Budget,
        claim: Claim,
        bells: tuple[ThreadBell, ThreadBell],
        meter: Meter,
    ) -> None:
        self._spec = spec
        self._fold = copy.deepcopy(spec.fold)
        self._restored = stage_part(at, spec.name)
        self._upstream = upstream_part(at, before)
        self._source = source
        self._out = out
        self._budget = budget
        self._claim = claim
        self._room, self._filled = bells
        self._meter = meter
        self._stopping = False
        self._output_bytes = 0
        self._outputs = 0
        self._input: Slot | None = None
        self.threads = [threading.Thread(target=self._work, name=spec.name, daemon=True)]

    def coroutines(self) -> list[Coroutine[object, object, None]]:
        """What the engine's task group runs."""
        return []

    def stop(self) -> None:
        """Let the thread end after the call that it is in. From any thread."""
        self._stopping = True
        self._room.stop()
        self._filled.stop()

    def _work(self) -> None:
        computed = thread_time()
        try:
            error = self._run()
        except Stopped:
            return
        except BaseException as raised:  # noqa: BLE001 - whatever a fold raises is the consumer's to see
            failed_at = self._input
            error = StageFailed.of(
                raised,
                stage=self._spec.name,
                index=self._outputs if failed_at is None else failed_at.index,
                value=None if failed_at is None else failed_at.value,
            )
        finally:
            self._meter.computed(thread_time() - computed)
        try:
            self._room.wait(self._out.has_room)
        except Stopped:
            return
        self._out.push(Slot.last(error, self._outputs))

    def _run(self) -> StageFailed | None:
        """Fold until the input is over; gives the error that ended it, if one did."""
        fold = self._fold
        if self._restored is not None:
            assert isinstance(self._restored, dict)
            fold.restore(self._restored)
            self._drain(fold.emit)  # the state may be of the middle of an input's outputs
        while True:
            self._input = slot = self._next()
            if slot.kind is END:
                self._input = None
                if slot.value is None:
                    self._drain(fold.finish)
                    return None
                assert isinstance(slot.value, StageFailed)
                return slot.value
            began = perf_counter()
            fold.accept(slot.value)
            assert slot.resume is not None
            self._upstream = slot.resume
            self._drain(fold.emit, began, slot.index)
            self._budget.add(-slot.nbytes)
            self._input = None
            del slot  # what has been handed on must not be kept alive from here

    def _next(self) -> Slot:
        while not self._stopping:
            if not self._may_reserve():
                self._wait_for_room()
            if not self._source.is_ready():
                self._source.taker_pauses()
                began = perf_counter()
                self._filled.wait(self._source.is_ready)
                self._meter.starved(perf_counter() - began)
            slot = self._source.take()
            if slot is not None:
                return slot
        raise Stopped

    def _drain(self, emit: Callable[[], object | None], began: float | None = None, index: int = -1) -> None:
        """Pass on what `emit` gives until it gives nothing; the time since `began` is one call's."""
        waited = 0.0
        began = perf_counter() if began is None else began
        while (value := emit()) is not None:
            resume = with_stage(self._upstream, self._spec.name, self._fold.state())
            waited += self._pass(value, resume)
            del value
        self._meter.call(index, began, perf_counter(), waited)

    def _pass(self, value: object, resume: State) -> float:
        """Publish one output; gives the seconds that were spent waiting for room."""
        waited = 0.0 if self._may_reserve() else self._wait_for_room()
        self._output_bytes = nbytes = size_of(value)
        self._budget.add(nbytes)
        self._out.push(Slot(VALUE, self._outputs, value, resume, nbytes))
        self._meter.out(1, nbytes)
        self._meter.emitted(self._outputs)
        self._outputs += 1
        return waited

    def _may_reserve(self) -> bool:
        return self._out.has_room() and self._claim.allows(self._output_bytes)

    def _wait_for_room(self) -> float:
        self._source.taker_pauses()
        began = perf_counter()
        self._room.wait(self._may_reserve)
        waited = perf_counter() - began
        self._meter.blocked(waited)
        return waited
