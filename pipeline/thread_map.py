"""A map in threads: `width` workers that take turns at the input, call, and fill the window themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from time import perf_counter, thread_time
from types import CoroutineType

from .deadline import Call, watch
from .errors import TimeLimit
from .intake import Intake, Tally
from .plan import Mapping
from .statistics import Meter
from .turns import Turns
from .waiting import Stopped, ThreadBell
from .window import Slot


class ThreadMap:
    """Runs a `Mapping` whose place is threads.

    The threads are daemons of our own, not an executor's: an executor costs a hundred µs a call, and its threads keep
    the interpreter from exiting.
    """

    def __init__(
        self, spec: Mapping, intake: Intake, room: ThreadBell, filled: ThreadBell, meters: list[Meter]
    ) -> None:
        self._spec = spec
        self._intake = intake
        self._turns = Turns(intake, room, filled)
        self._stopping = False
        self._backing_off = threading.Event()
        self._workers = [
            _Worker(self._work, f"{spec.name}-{number}", meter) for number, meter in enumerate(meters)
        ]

    @property
    def threads(self) -> list[threading.Thread]:
        """Named after the stage; started and joined by the engine."""
        return [worker.thread for worker in self._workers]

    def coroutines(self) -> list[Coroutine[object, object, None]]:
        """What the engine's task group runs."""
        limit_s = self._spec.time_limit_s
        return [] if limit_s is None else [watch(self._calls, limit_s, self._expire)]

    def stop(self) -> None:
        """Let each thread end after the call that it is in. From any thread."""
        self._stopping = True
        self._backing_off.set()
        self._turns.stop()

    def _work(self, worker: _Worker) -> None:
        try:
            # Where there is room and input nothing waits, and so nothing is told that the plan is left.
            while not self._stopping and (worker.slots or self._admit(worker)):
                self._perform(worker)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - a thread's end must not pass in silence
            self._intake.fault(error)

    def _admit(self, worker: _Worker) -> bool:
        worker.slots += self._turns.admit(worker.meter)
        worker.slots.reverse()
        return bool(worker.slots)

    def _perform(self, worker: _Worker) -> None:
        """The worker's calls, from the last slot to the first."""
        intake, slots, meter, function = self._intake, worker.slots, worker.meter, self._spec.function
        guarded, plain = self._spec.time_limit_s is not None, self._spec.retry is None
        calls, computed = len(slots), thread_time()
        # Small calls are timed together: looking at the clock would take longer than some of them.
        each = calls == 1 or guarded or meter.one_by_one
        first = began = perf_counter()
        index = slots[-1].index
        while slots:  # emptied, since what has been handed on must not be kept alive from here
            slot = slots.pop()
            if guarded:
                worker.call = Call(slot, began)
            try:
                value = function(slot.value) if plain else self._call(slot, worker)
                if isinstance(value, CoroutineType):
                    raise _closed(value)
            except Stopped:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever a function raises is the consumer's to see
                if guarded:
                    self._claim(worker)
                if not intake.failed(slot, error):
                    slots.clear()
                    return
                meter.dropped()
            else:
                if guarded:
                    self._claim(worker)
                intake.done(slot, value, worker.tally)
                del value
            if each:
                ended = perf_counter()
                meter.call(slot.index, began, ended)
                began = ended
            del slot
            if self._stopping and slots:
                raise Stopped
        ended = perf_counter()
        if not each:
            meter.calls(index, calls, first, ended)
        meter.computed(thread_time() - computed)
        intake.took(calls, ended - first, worker.tally, meter)

    def _call(self, slot: Slot, worker: _Worker) -> object:
        """The function's result, with retries; the time limit is of each attempt."""
        attempts, guarded = 1, self._spec.time_limit_s is not None
        while True:
            try:
                return self._spec.function(slot.value)
            except Exception as error:
                retry = self._spec.retry
                if retry is None or not retry.again(error, attempts):
                    raise
                if guarded:
                    self._claim(worker)
                worker.meter.retried()
            if self._backing_off.wait(retry.delay_s(attempts)):
                raise Stopped
            if guarded:
                worker.call = Call(slot, perf_counter())
            attempts += 1

    def _calls(self) -> list[Call]:
        return [call for worker in self._workers if (call := worker.call) is not None]

    def _claim(self, worker: _Worker) -> None:
        """Take the right to settle the worker's call. Raises Stopped: its time is over, and so is the worker."""
        if worker.call is None or not worker.call.claim():
            raise Stopped
        worker.call = None

    def _expire(self, call: Call) -> None:
        """Settle a call in the place of the worker that did not return from it, and let another take over."""
        worker = next(worker for worker in self._workers if worker.call is call)
        error = TimeLimit(
            f"the call did not return within {self._spec.time_limit_s} s; "
            f"its thread '{worker.thread.name}' is abandoned"
        )
        self._workers.remove(worker)
        if self._intake.failed(call.slot, error):
            worker.meter.dropped()
            successor = _Worker(self._work, worker.thread.name, worker.meter)
            successor.slots, successor.tally = worker.slots, worker.tally
            self._workers.append(successor)
            successor.thread.start()


class _Worker:
    """One thread, and what it has taken to do."""

    def __init__(self, run: Callable[[_Worker], None], name: str, meter: Meter) -> None:
        self.thread = threading.Thread(target=run, args=(self,), name=name, daemon=True)
        self.meter = meter
        self.tally = Tally()
        self.slots: list[Slot] = []
        """Calls to do, the last one first."""
        self.call: Call | None = None
        """The one it is in, where the stage has a time limit."""


def _closed(coroutine: CoroutineType[object, object, object]) -> TypeError:
    """Close `coroutine`; gives what to raise."""
    coroutine.close()
    return TypeError("the function gave a coroutine, which a thread cannot await: give on='loop'")
