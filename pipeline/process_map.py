"""A map in processes: `width` threads, each of which drives one worker process and fills the window from it."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from time import perf_counter

from .deadline import Call, watch
from .errors import PipelineError, TimeLimit
from .intake import Intake, Tally
from .plan import Mapping
from .processes import Raised, Returned, Worker, WorkerClosed, WorkerDied
from .statistics import Meter
from .turns import Turns
from .waiting import Stopped, ThreadBell
from .window import Slot

LEAVE_S = 0.25
"""How long a process has to end by itself when the plan is left."""
_AHEAD_BELOW_S = 20e-3
"""Calls that take longer are not sent ahead to a process that is busy: another one may be free sooner."""
_CONSUMER_S = 1e-3
"""How long the consumer has to take what came, and so to make room for a batch that is sent ahead."""


class ProcessMap:
    """Runs a `Mapping` whose place is processes."""

    def __init__(
        self, spec: Mapping, intake: Intake, room: ThreadBell, filled: ThreadBell, meters: list[Meter]
    ) -> None:
        self._spec = spec
        self._intake = intake
        self._turns = Turns(intake, room, filled)
        self._stopping = threading.Event()
        self._function = pickle.dumps(spec.function, protocol=5)
        self._drivers = [
            _Driver(self._work, f"{spec.name}-{number}", meter) for number, meter in enumerate(meters)
        ]

    @property
    def threads(self) -> list[threading.Thread]:
        """Named after the stage; started and joined by the engine."""
        return [driver.thread for driver in self._drivers]

    def coroutines(self) -> list[Coroutine[object, object, None]]:
        """What the engine's task group runs."""
        limit_s = self._spec.time_limit_s
        return [] if limit_s is None else [watch(self._calls, limit_s, self._expire)]

    def stop(self) -> None:
        """Let each thread and process end. From any thread."""
        self._stopping.set()
        self._turns.stop()
        for driver in self._drivers:
            driver.close()

    def _work(self, driver: _Driver) -> None:
        try:
            try:
                self._start(driver)
                while self._admit(driver):
                    self._receive(driver)
            except WorkerClosed:
                raise Stopped from None
            except PipelineError as error:
                self._fail(driver, error)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - a thread's end must not pass in silence
            self._intake.fault(error)
        finally:
            driver.end()

    def _start(self, driver: _Driver) -> None:
        driver.start(self._function)
        if self._spec.time_limit_s is not None:
            # Answered once the function is there: what it imports is not a call's time.
            driver.worker.send([])
            driver.worker.receive()

    def _admit(self, driver: _Driver) -> bool:
        """Keep the process busy: one batch of calls is with it, and another one waits there if calls are short."""
        if not driver.flying:
            self._send(driver, self._turns.admit(driver.meter))
        if (
            len(driver.flying) == 1
            and self._spec.time_limit_s is None
            and self._intake.calls_take_less(_AHEAD_BELOW_S)
        ):
            self._send(driver, self._turns.try_to_admit(_CONSUMER_S))
        return bool(driver.flying)

    def _send(self, driver: _Driver, slots: list[Slot]) -> None:
        if not slots:
            return
        driver.flying.append(slots)
        if self._spec.time_limit_s is not None:
            driver.call = Call(slots[0], perf_counter())
        driver.worker.send([slot.value for slot in slots])

    def _receive(self, driver: _Driver) -> None:
        """Settle the oldest batch, and send what is left of it after a failure."""
        try:
            outcomes = driver.worker.receive()
        except WorkerDied:
            if not self._is_late(driver):
                raise
            self._replace(driver)
            return
        if self._is_late(driver):  # the result came just as the watch gave up on it
            self._replace(driver)
            return
        slots = driver.flying.popleft()
        slots.reverse()
        calls, seconds = len(outcomes), sum(outcome.ended - outcome.began for outcome in outcomes)
        outcomes.reverse()
        while outcomes:  # emptied, since what has been handed on must not be kept alive from here
            self._settle(driver, slots, outcomes.pop())
        if calls:
            self._intake.took(calls, seconds, driver.tally, driver.meter)
        slots.reverse()
        self._send(driver, slots)

    def _settle(self, driver: _Driver, slots: list[Slot], outcome: Returned | Raised) -> None:
        """Settle the last of `slots`, or leave it there to be called again."""
        slot, meter = slots.pop(), driver.meter
        meter.call(slot.index, outcome.began, outcome.ended)
        meter.computed(outcome.cpu_s)
        if isinstance(outcome, Returned):
            self._intake.done(slot, outcome.value, driver.tally)
            return
        attempts = driver.attempts.pop(slot, 0) + 1
        retry = self._spec.retry
        if retry is not None and retry.again(outcome.error, attempts):
            meter.retried()
            driver.attempts[slot] = attempts
            slots.append(slot)
            if self._stopping.wait(retry.delay_s(attempts)):
                raise Stopped
        elif self._intake.failed(slot, outcome.error):
            meter.dropped()
        else:
            raise Stopped

    def _fail(self, driver: _Driver, error: PipelineError) -> None:
        """The process is gone or never came: what it had is tried nowhere else."""
        if not driver.flying:
            driver.flying.append(self._turns.admit(driver.meter))
        lost = driver.flying[0]
        if not lost:
            return
        if isinstance(error, WorkerDied) and len(lost) > 1:
            # It took them at once, and which of them was its end is not known.
            error = WorkerDied(
                error.name, error.pid, f"{error.how}, with items {lost[0].index} to {lost[-1].index}"
            )
        self._intake.failed(lost[0], error, may_drop=False)

    def _calls(self) -> list[Call]:
        return [call for driver in self._drivers if (call := driver.call) is not None]

    def _expire(self, call: Call) -> None:
        """Kill the process that does not return from `call`; its thread learns of it."""
        for driver in self._drivers:
            if driver.call is call:
                driver.kill()

    def _is_late(self, driver: _Driver) -> bool:
        call, driver.call = driver.call, None
        return call is not None and not call.claim()

    def _replace(self, driver: _Driver) -> None:
        """Settle the call that took too long, and go on with a new process."""
        (slot,) = driver.flying.popleft()
        error = TimeLimit(
            f"the call did not return within {self._spec.time_limit_s} s; its process was killed"
        )
        if not self._intake.failed(slot, error):
            raise Stopped
        driver.meter.dropped()
        driver.end()
        self._start(driver)


class _Driver:
    """One thread, its worker process, and the batches of calls that are with it."""

    def __init__(self, run: Callable[[_Driver], None], name: str, meter: Meter) -> None:
        self.thread = threading.Thread(target=run, args=(self,), name=name, daemon=True)
        self.meter = meter
        self.tally = Tally()
        self.flying: deque[list[Slot]] = deque()
        self.attempts: dict[Slot, int] = {}
        """How often a call that is to be made again has failed."""
        self.call: Call | None = None
        """The call that is with the process, where the stage has a time limit."""
        self._worker: Worker | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    def start(self, function: bytes) -> None:
        """Start a process. Raises Stopped, and PipelineError where there can be none."""
        with self._lock:
            if self._closed:
                raise Stopped
            self._worker = Worker(self.thread.name, function)

    def close(self) -> None:
        """Let the process end, and whatever waits for it here. From any thread."""
        with self._lock:
            self._closed = True
            if self._worker is not None:
                self._worker.close()

    def kill(self) -> None:
        """Kill the process, if there is one. From any thread."""
        with self._lock:
            if self._worker is not None:
                self._worker.kill()

    def end(self) -> None:
        """Wait until the process is gone; it has little time to go by itself."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.close()
        if not worker.join(LEAVE_S):
            worker.kill()
            worker.join(LEAVE_S)
