"""A plan at work: one loop in a thread of its own, one task group that owns every task, one consumer."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
import weakref
from collections.abc import Coroutine, Iterator
from threading import Thread, current_thread
from types import TracebackType
from typing import Generic, TypeVar, cast

from .errors import AbandonedThread, PipelineError
from .item import Item, State
from .loop_map import LoopMap
from .plan import Plan
from .reader import Reader
from .thread_map import ThreadMap
from .window import End, LoopWindow, Outlet, Window

T = TypeVar("T")

GRACE_S = 1.0
"""How long `close()` waits for calls that are running; then their threads are abandoned."""


def start(plan: Plan[T], *, at: State | None = None) -> Running[T]:
    """Start `plan` from the state `at`, the `resume` of the last item used; None is the beginning.

    ```
    with start(plan, at=state) as running:
        for item in running:
            use(item.value)
            state = item.resume
    ```
    """
    engine = _Engine(plan, at)
    running: Running[T] = Running(engine)
    engine.start()  # last: what is interrupted from here on, is stopped when `running` is collected
    return running


class Running(Iterator[Item[T]], Generic[T]):
    """An iterator over the items of a started plan, for one consumer thread.

    Raises `StageFailed` in the place of the item that could not be made. Leaving the `with` block for any
    reason, or `close()`, ends every task and thread. One that is never closed is closed when it is collected
    or the interpreter exits.
    """

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine
        self._outlet = engine.outlet
        self._over: StopIteration | PipelineError | None = None
        # Not a __del__: this also runs when the interpreter exits, where nothing may be waited for.
        self._unclosed = weakref.finalize(self, engine.stop)

    def __enter__(self) -> Running[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except PipelineError as late:
            if error is None:
                raise
            if late is not error:
                error.add_note(f"And then, when the pipeline was closed: {late}")

    def __iter__(self) -> Running[T]:
        return self

    def __next__(self) -> Item[T]:
        if self._over is not None:
            raise self._over
        entry = self._outlet.take()
        if isinstance(entry, End):
            self._over = StopIteration() if entry.error is None else entry.error
            self._engine.stop()
            raise self._over
        return cast("Item[T]", entry)  # the plan's signatures hold the stages together

    def close(self) -> None:
        """End every task and thread; safe to call twice, and from another thread than the consumer's.

        Sources are closed. A function that is still running after a second is left behind in its daemon
        thread, with an `AbandonedThread` warning. Raises `StageFailed` where closing a source failed.
        """
        if not self._unclosed.alive:
            return
        self._unclosed.detach()
        self._outlet.abort(PipelineError("read after close(): start again at the last item's resume"))
        self._engine.stop()
        self._engine.join(GRACE_S)


class _Engine:
    """Stages, windows and threads of one started plan. Holds nothing of the consumer's."""

    def __init__(self, plan: Plan[object], at: State | None) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._stop_asked = False
        self._stopping = asyncio.Event()
        self._late: PipelineError | None = None
        self._names = plan.names
        self._stages: list[Reader | LoopMap | ThreadMap] = []
        self._build(plan, at)
        self._threads = [thread for stage in self._thread_maps() for thread in stage.threads]
        self._threads.append(Thread(target=self._run_loop, name="pipeline-loop", daemon=True))

    def start(self) -> None:
        """Start every thread, that of the loop last. PipelineError: the system has no thread left."""
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            self.stop()
            self._runner.close()
            raise PipelineError(f"could not start {len(self._threads)} threads: {error}") from error

    def stop(self) -> None:
        """Let every task and thread end; waits for none of them. From any thread, at any time."""
        if self._stop_asked:
            return
        self._stop_asked = True
        for stage in self._thread_maps():
            stage.stop()
        with contextlib.suppress(RuntimeError):  # the loop has ended, and is closed
            self._loop.call_soon_threadsafe(self._stopping.set)

    def join(self, grace_s: float) -> None:
        """Wait for every thread after `stop`, then raise what went wrong while stopping."""
        deadline = time.monotonic() + grace_s
        others = [thread for thread in self._threads if thread is not current_thread()]
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        if running := [thread.name for thread in others if thread.is_alive()]:
            warnings.warn(
                f"the pipeline is closed, but threads still inside a stage's function are left behind: "
                f"{', '.join(running)}",
                AbandonedThread,
                stacklevel=3,
            )
        if self._late is not None:
            raise self._late

    def _build(self, plan: Plan[object], at: State | None) -> None:
        specs = plan.mappings
        *ahead, last = plan.reading.ahead, *(spec.ahead for spec in specs)
        inner = [LoopWindow(self._loop, items) for items in ahead]
        self.outlet = Outlet(self._loop, last, busy=specs[-1].width if specs else 1)
        windows: list[Window] = [*inner, self.outlet]
        self._stages.append(Reader(plan.reading, at, windows[0]))
        for spec, source, out in zip(specs, inner, windows[1:], strict=True):
            self._stages.append((ThreadMap if spec.place == "thread" else LoopMap)(spec, source, out))

    def _thread_maps(self) -> list[ThreadMap]:
        return [stage for stage in self._stages if isinstance(stage, ThreadMap)]

    def _run_loop(self) -> None:
        with self._runner:
            self._runner.run(self._main())

    async def _main(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._watched(run, name))
                    for name, stage in zip(self._names, self._stages, strict=True)
                    for run in stage.coroutines()
                ]
                await self._stopping.wait()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as failures:
            self._late = _first_of(failures)
            self.outlet.abort(self._late)

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


def _first_of(failures: BaseExceptionGroup[BaseException]) -> PipelineError:
    """The stage's failure among `failures`; anything else is a fault of the engine."""
    for failure in failures.exceptions:
        if isinstance(failure, PipelineError):
            return failure
    fault = PipelineError(f"a fault of the engine itself: {failures.exceptions[0]!r}")
    fault.__cause__ = failures
    return fault
