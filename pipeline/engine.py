"""Stages, windows, threads and the loop of one started plan, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import Coroutine, Sequence
from threading import Thread, current_thread
from typing import Literal, Protocol

from .budget import Budget, Claim
from .dropping import DropGate
from .errors import AbandonedThread, PipelineError
from .folding import FoldThread
from .intake import Intake
from .item import State
from .loop_map import LoopMap
from .plan import Folding, Mapping, Plan, Stage, is_coroutine_function
from .process_map import ProcessMap
from .reader import Reader
from .resuming import source_part, stage_part
from .statistics import ConsumerStats, Meter, StageStats, Stats, Where
from .thread_map import ThreadMap
from .trace import Flow, Trace
from .waiting import Bell, LoopBell, ThreadBell
from .window import Gate, Window


class Runner(Protocol):
    """A stage at work."""

    def coroutines(self) -> list[Coroutine[object, object, None]]:
        """What the task group runs."""
        ...


class ThreadRunner(Runner, Protocol):
    """A stage at work in threads."""

    @property
    def threads(self) -> Sequence[Thread]:
        """Started and joined by the engine."""
        ...

    def stop(self) -> None:
        """Let the threads end. From any thread, at any time."""
        ...


class Consumer:
    """What the consumer has done; written by its thread alone."""

    __slots__ = ("items", "waited_s")

    def __init__(self) -> None:
        self.items = 0
        self.waited_s = 0.0


class Engine:
    """One started plan. Holds nothing of the consumer's, so that it ends when its consumer is forgotten.

    Raises StateMismatch: `at` is not a state of this plan.
    """

    def __init__(self, plan: Plan[object], at: State | None, budget_bytes: int, trace: Trace | None) -> None:
        source_at = source_part(at, plan.stateful)
        self.budget = Budget(budget_bytes)
        self.consumer = Consumer()
        self.aborted: PipelineError | None = None
        """Raised by every further take."""
        self._late: PipelineError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Made and closed by its thread, which no signal interrupts: Ctrl-C while starting leaves nothing open."""
        self._stop_asked = False
        self._stopping = asyncio.Event()
        self._plan = plan
        self._trace = trace
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._taker = ThreadBell()
        self._windows = self._make_windows(at)
        self.outlet = self._windows[-1]
        self._meters = self._make_meters()
        if trace is not None:
            trace.depths = self._depths
        self._runners: list[Runner] = [
            Reader(
                plan.reading,
                source_at,
                self._windows[0],
                self.budget,
                self._claim(0),
                self._meters[0][0],
                _on_loop(self._windows[0].room_bell),
                stateful=bool(plan.stateful),
            )
        ]
        self._threaded: list[ThreadRunner] = []
        for number, spec in enumerate(plan.stages, 1):
            self._add(number, spec, at)
        self._threads: list[Thread] = []

    def start(self) -> None:
        """Start every thread, that of the loop last. PipelineError: the system has no thread left."""
        threads = [thread for runner in self._threaded for thread in runner.threads]
        threads.append(Thread(target=self._run_loop, name="pipeline-loop", daemon=True))
        self._threads.append(threads[-1])
        try:
            for thread in threads:
                thread.start()
        except RuntimeError as error:
            self.stop()
            raise PipelineError(f"could not start {len(threads)} threads: {error}") from error

    def wait(self) -> None:
        """Let the consumer wait for the outlet. Raises what the plan was aborted with."""
        self._taker.wait(self._may_take)
        if self.aborted is not None:
            raise self.aborted

    def abort(self, error: PipelineError) -> None:
        """Let every take raise `error` from now on. From any thread."""
        self.aborted = error
        self._taker.ring()

    def stats(self) -> Stats:
        """A snapshot, from any thread."""
        elapsed_s = (self._ended or time.perf_counter()) - self._began
        waited_s = self.consumer.waited_s
        stages = zip(self._plan.names, self._specs(), self._windows, self._meters, strict=True)
        return Stats(
            elapsed_s=elapsed_s,
            stages=tuple(
                StageStats.of(
                    meters,
                    name=name,
                    on=_place(spec),
                    width=len(meters),
                    can_widen=_can_widen(spec),
                    queued=len(window),
                    ahead=window.ahead,
                )
                for name, spec, window, meters in stages
            ),
            consumer=ConsumerStats(
                items=self.consumer.items, busy_s=max(0.0, elapsed_s - waited_s), waited_s=waited_s
            ),
            queued_bytes=max(0, self.budget.used_bytes),
            budget_bytes=self.budget.limit_bytes,
        )

    def stop(self) -> None:
        """Let every task, thread and process end; waits for none of them. From any thread, at any time."""
        if self._ended is not None:
            return
        self._stop_asked = True
        for runner in self._threaded:
            runner.stop()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and is closed
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._ended = time.perf_counter()  # last: a stop that was interrupted is made again

    def join(self, grace_s: float) -> None:
        """Wait for every thread after `stop`, then raise what went wrong while stopping."""
        deadline = time.monotonic() + grace_s
        threads = [*self._threads, *(thread for runner in self._threaded for thread in runner.threads)]
        others = [thread for thread in threads if thread is not current_thread()]
        for thread in others:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._trace is not None:
            self._close(self._trace)
        if running := [thread.name for thread in others if thread.is_alive()]:
            warnings.warn(
                f"the pipeline is closed, but threads still inside a stage's function are left behind: "
                f"{', '.join(running)}",
                AbandonedThread,
                stacklevel=3,
            )
        if self._late is not None:
            raise self._late

    def _close(self, trace: Trace) -> None:
        try:
            trace.close()
        except PipelineError as error:
            self._late = self._late or error

    def _specs(self) -> list[Stage | None]:
        return [None, *self._plan.stages]

    def _make_windows(self, at: State | None) -> list[Window]:
        specs = self._specs()
        aheads = [self._plan.reading.ahead, *(stage.ahead for stage in self._plan.stages)]
        takers = [*(self._bell(spec) for spec in specs[1:]), self._taker]
        return [
            Window(ahead, self._bell(spec), taker, self._gate(spec, at))
            for ahead, spec, taker in zip(aheads, specs, takers, strict=True)
        ]

    def _bell(self, spec: Stage | None) -> Bell:
        """A bell for the side of a window where `spec` waits; None is the source."""
        if spec is None or (isinstance(spec, Mapping) and spec.place == "loop"):
            return LoopBell()
        return ThreadBell()

    def _gate(self, spec: Stage | None, at: State | None) -> Gate | None:
        if isinstance(spec, Mapping) and spec.on_error is not None:
            return DropGate(spec.name, spec.on_error, stage_part(at, spec.name), self.budget)
        return None

    def _claim(self, number: int) -> Claim:
        windows = self._windows[number:]
        return self.budget.claim(windows[0].room_bell, windows)

    def _make_meters(self) -> list[list[Meter]]:
        """Of each stage, one for each worker."""
        meters: list[list[Meter]] = []
        numbered_by = self._plan.reading.name
        for number, (name, spec) in enumerate(zip(self._plan.names, self._specs(), strict=True)):
            last = number == len(self._windows) - 1
            workers = range(spec.width if isinstance(spec, Mapping) else 1)
            phase: Literal["s", "t", "f"] = (
                "f" if last or isinstance(spec, Folding) else "t" if number else "s"
            )
            flow = Flow(
                numbered_by, None if last and not number else phase, isinstance(spec, Folding) and not last
            )
            trace = self._trace
            meters.append([Meter() if trace is None else trace.meter(name, each, flow) for each in workers])
            if isinstance(spec, Folding):
                numbered_by = name
        return meters

    def _depths(self) -> dict[str, int]:
        depths = {
            f"{name}: items": len(window)
            for name, window in zip(self._plan.names, self._windows, strict=True)
        }
        return {**depths, "bytes": self.budget.used_bytes}

    def _add(self, number: int, spec: Stage, at: State | None) -> None:
        source, out = self._windows[number - 1 : number + 1]
        room, filled = out.room_bell, source.filled_bell
        claim, meters = self._claim(number), self._meters[number]
        if isinstance(spec, Folding):
            before = self._plan.stateful[: self._plan.stateful.index(spec.name)]
            bells = _in_thread(room), _in_thread(filled)
            self._add_threaded(
                FoldThread(spec, at, before, source, out, self.budget, claim, bells, meters[0])
            )
            return
        intake = Intake(spec, source, out, self.budget, claim, self._fault)
        if spec.place == "loop":
            self._runners.append(LoopMap(spec, intake, _on_loop(room), _on_loop(filled), meters))
        else:
            in_threads = ThreadMap if spec.place == "thread" else ProcessMap
            self._add_threaded(in_threads(spec, intake, _in_thread(room), _in_thread(filled), meters))

    def _add_threaded(self, runner: ThreadRunner) -> None:
        self._runners.append(runner)
        self._threaded.append(runner)

    def _fault(self, error: BaseException) -> None:
        """End the plan with what the engine's own code raised in a thread."""
        self.abort(_fault(error))

    def _may_take(self) -> bool:
        return self.outlet.is_ready() or self.aborted is not None

    def _run_loop(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._main())
        except OSError as error:
            refused = PipelineError(f"could not make an event loop: {error}")
            refused.__cause__ = error
            self.abort(refused)
        except BaseException as error:  # noqa: BLE001 - a thread's end must not pass in silence
            self._fault(error)

    async def _main(self) -> None:
        if self._stop_asked:
            return  # tasks that are cancelled before they begin never await the coroutines that they were given
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._watched(run, name))
                    for name, runner in zip(self._plan.names, self._runners, strict=True)
                    for run in runner.coroutines()
                ]
                await self._stopping.wait()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as failures:
            self._late = _first_of(failures)
            self.abort(self._late)

    async def _watched(self, run: Coroutine[object, object, None], stage: str) -> None:
        """Await `run`. PipelineError: it was cancelled, and not by us; the group would let that pass in silence."""
        try:
            await run
        except asyncio.CancelledError as error:
            if self._stopping.is_set():
                raise
            self._stopping.set()  # for the others, which the group cancels next
            raise PipelineError(
                f"stage '{stage}' cancelled the task that it runs in: a stage may cancel tasks of its own alone"
            ) from error


def _place(spec: Stage | None) -> Where:
    if spec is None:
        return "source"
    return "thread" if isinstance(spec, Folding) else spec.place


def _can_widen(spec: Stage | None) -> bool:
    return isinstance(spec, Mapping) and (spec.place != "loop" or is_coroutine_function(spec.function))


def _on_loop(bell: Bell) -> LoopBell:
    assert isinstance(bell, LoopBell)
    return bell


def _in_thread(bell: Bell) -> ThreadBell:
    assert isinstance(bell, ThreadBell)
    return bell


def _first_of(failures: BaseExceptionGroup[BaseException]) -> PipelineError:
    """The stage's failure among `failures`; anything else is a fault of the engine."""
    for failure in failures.exceptions:
        if isinstance(failure, PipelineError):
            return failure
    return _fault(failures.exceptions[0])


def _fault(error: BaseException) -> PipelineError:
    fault = PipelineError(f"a fault of the engine itself: {error!r}")
    fault.__cause__ = error
    return fault
