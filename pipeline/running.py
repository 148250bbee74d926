"""A plan at work: one loop in a thread of its own, one task group that owns every task, one consumer."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar, cast

from .budget import DEFAULT_BYTES
from .engine import Engine
from .errors import PipelineError
from .item import Item, State
from .plan import Plan
from .protocols import Sink
from .statistics import Stats
from .trace import Trace
from .window import END, Slot

T = TypeVar("T")

GRACE_S = 1.0
"""How long `close()` waits for calls that are running; then their threads are abandoned."""
_GIVE_BACK_BYTES = 64 << 10


def start(
    plan: Plan[T],
    *,
    at: State | None = None,
    budget_bytes: int = DEFAULT_BYTES,
    trace: str | Path | None = None,
) -> Running[T]:
    """Start `plan` from the state `at`, the `resume` of the last item used; None is the beginning.

    ```
    with start(plan, at=state) as running:
        for item in running:
            use(item.value)
            state = item.resume
    ```

    `budget_bytes`: what all windows of the plan hold together, by `size_of`; one item that weighs more passes alone.
    `trace`: a file that the life of each item is written to, in Chrome's trace format.

    Raises StateMismatch: `at` is not a state of this plan. ValueError: a budget below one byte. PipelineError: the
    trace cannot be written, or the system has no thread left.
    """
    tracing = None if trace is None else Trace(Path(trace))
    engine = Engine(plan, at, budget_bytes, tracing)
    running: Running[T] = Running(engine)
    engine.start()  # last: what is interrupted from here on, is stopped when `running` is collected
    return running


class Running(Iterator[Item[T]], Generic[T]):
    """An iterator over the items of a started plan, for one consumer thread.

    Raises `StageFailed` in the place of the item that could not be made. Leaving the `with` block for any
    reason, or `close()`, ends every task, thread and process. One that is never closed is closed when it is collected
    or the interpreter exits.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._outlet = engine.outlet
        self._ready = engine.outlet.is_ready
        self._take = engine.outlet.take
        self._consumer = engine.consumer
        self._over: StopIteration | PipelineError | None = None
        self._taken_bytes = 0
        # The plan's signatures hold the stages together, and only the last slot has no resume.
        self._item = cast("Callable[[object, State | None], Item[T]]", Item)
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
        while True:
            if self._over is not None:
                raise self._over
            if not self._ready():
                self._wait()
            slot = self._take()
            if slot is None:
                continue
            if slot.kind is END:
                self._end(slot)
                continue
            self._taken_bytes += slot.nbytes
            if self._taken_bytes >= _GIVE_BACK_BYTES:
                self._give_back()
            self._consumer.items += 1
            return self._item(slot.value, slot.resume)

    def drain(self, sink: Sink[T]) -> State | None:
        """Put every value into `sink`; gives the `resume` of the last one, None where there was none."""
        resume = None
        for item in self:
            sink.put(item.value)
            resume = item.resume
        return resume

    def stats(self) -> Stats:
        """What each stage has done since the start; a snapshot, from any thread."""
        return self._engine.stats()

    def close(self) -> None:
        """End every task, thread and process; safe to call twice, and from another thread than the consumer's.

        Sources are closed. A function that is still running after a second is left behind in its daemon
        thread, with an `AbandonedThread` warning. Raises `StageFailed` where closing a source failed.
        """
        if not self._unclosed.alive:
            return
        closed = PipelineError("read after close(): start again at the last item's resume")
        self._over = self._over or closed
        self._engine.abort(closed)
        self._engine.stop()
        self._unclosed.detach()  # not before: Ctrl-C in here must not leave anything running
        self._engine.join(GRACE_S)

    def _end(self, last: Slot) -> None:
        assert last.value is None or isinstance(last.value, PipelineError)
        self._over = StopIteration() if last.value is None else last.value
        self._give_back()
        self._engine.stop()

    def _wait(self) -> None:
        self._give_back()
        self._outlet.taker_pauses()
        began = time.perf_counter()
        self._engine.wait()
        self._consumer.waited_s += time.perf_counter() - began

    def _give_back(self) -> None:
        """Tell the budget what has been taken: an item at a time would cost a lock each."""
        self._engine.budget.add(-self._taken_bytes)
        self._taken_bytes = 0
