"""The life of each item, in Chrome's trace format: open the file in Perfetto or chrome://tracing.

```
source-0   ▐ source ▌───╮ item 7
decode-0                ╰►▐ decode ▌──╮            arrows join the calls that one item went through;
decode-1   ░ waits for input ░        │            what a fold emits begins anew, numbered by the fold
pack-0                                ╰►▐ pack ▌──► …
```

One track for each worker, in the plan's order. On it a slice for each call, and one for each wait of a millisecond or
more; counters show how full the windows are. The format is that of Google's document "Trace Event Format", its array
form, in which the closing bracket may be missing: a file that a kill cut short opens too. There is one event a line.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeAlias

from .errors import PipelineError
from .statistics import Meter

SHOWN_WAIT_S = 1e-3
"""Shorter waits are not shown."""
_BUFFERED = 256
"""Events that a worker holds before they are written."""
_BUFFERED_S = 0.5
"""How long it holds them while it goes on."""
_COUNT_EVERY_S = 10e-3
_PID = 1

Depths: TypeAlias = Callable[[], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Flow:
    """How the arrows of a stage's items go."""

    numbered_by: str
    """The stage that gave the items of its calls their numbers: the source, or the last fold before it."""
    phase: Literal["s", "t", "f"] | None
    """Whether arrows start ("s"), pass ("t") or end ("f") at its calls."""
    emits: bool
    """Whether what it emits is numbered anew, with arrows from here."""


class Trace:
    """One file, written while the plan runs; what was there before is gone.

    PipelineError (exit code 2): it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._began = perf_counter()
        self._counted = self._began
        self._meters: list[TracedMeter] = []
        self._failure: OSError | None = None
        self.depths: Depths = dict
        """What the counters show; set by the engine."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, 0o644)
        except OSError as error:
            refused = PipelineError(f"trace {path}: cannot be written: {error.strerror}; name another file")
            refused.exit_code = 2
            raise refused from error
        # Whoever never closes a plan leaves a file without an end, but no descriptor.
        self._open = weakref.finalize(self, os.close, self._file)
        self._open.atexit = False
        self._write("[\n" + _metadata("process_name", 0, "pipeline"))

    def meter(self, stage: str, number: int, flow: Flow) -> TracedMeter:
        """A meter whose calls are traced, for the worker `number` of `stage`: the next track, in the plan's order."""
        meter = TracedMeter(self, stage, len(self._meters) + 1, flow)
        self._meters.append(meter)
        self.write(
            [
                _metadata("thread_name", meter.track, f"{stage}-{number}"),
                f'{{"ph":"M","name":"thread_sort_index","pid":{_PID},"tid":{meter.track},'
                f'"args":{{"sort_index":{meter.track}}}}}',
            ]
        )
        return meter

    def us(self, seconds: float) -> float:
        """Microseconds since the trace began, of a `time.perf_counter`."""
        return (seconds - self._began) * 1e6

    def count(self, now: float) -> None:
        """Write the counters, if it is time to."""
        if now - self._counted < _COUNT_EVERY_S:
            return
        self._counted = now
        self.write(
            [
                f'{{"ph":"C","name":{json.dumps(name)},"pid":{_PID},"tid":0,"ts":{self.us(now):.3f},'
                f'"args":{{"value":{value}}}}}'
                for name, value in self.depths().items()
            ]
        )

    def write(self, events: list[str]) -> None:
        """Append events. From any thread."""
        if events:
            self._write("".join(f",\n{event}" for event in events))

    def close(self) -> None:
        """Write what is left, and the end; safe to call twice. PipelineError: the file could not be written whole."""
        for meter in self._meters:
            meter.flush()
        self._write("\n]\n", last=True)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise PipelineError(
                f"trace {self._path}: could not be written whole: {failure.strerror}; what is there can be opened"
            ) from failure

    def _write(self, text: str, *, last: bool = False) -> None:
        data = memoryview(text.encode())
        with self._lock:
            if not self._open.alive:
                return
            try:
                while data and self._failure is None:
                    data = data[os.write(self._file, data) :]
            except OSError as error:
                self._failure = error  # the plan goes on; close() tells
            if last:
                self._open()


class TracedMeter(Meter):
    """A meter that also writes what it counts."""

    __slots__ = (
        "_arrows_here",
        "_arrows_on",
        "_buffer",
        "_flow",
        "_flushed",
        "_slice",
        "_trace",
        "_waited_until",
        "track",
    )

    one_by_one = True

    def __init__(self, trace: Trace, stage: str, track: int, flow: Flow) -> None:
        super().__init__()
        self.track = track
        self._trace = trace
        self._flow = flow
        self._slice = f'{{"ph":"X","name":{json.dumps(stage)},"cat":"call","pid":{_PID},"tid":{track},"ts":'
        # An arrow ends at the slice around it ("e"), not at the next one on its track.
        self._arrows_here = _arrow(flow.phase or "s", flow.numbered_by, track)
        self._arrows_on = _arrow("s", stage, track)
        self._buffer: list[str] = []
        self._flushed = perf_counter()
        self._waited_until = 0.0

    def call(self, index: int, began: float, ended: float, waited_s: float = 0.0) -> None:
        super().call(index, began, ended, waited_s)
        if not waited_s:
            began = max(began, self._waited_until)
        ts, dur = self._trace.us(began), (ended - began) * 1e6
        args = f'{{"item":{index}}}' if index >= 0 else "{}"
        self._buffer.append(f'{self._slice}{ts:.3f},"dur":{dur:.3f},"args":{args}}}')
        if index >= 0 and self._flow.phase is not None:
            self._buffer.append(self._arrows_here % (ts, index))
        if len(self._buffer) >= _BUFFERED or ended - self._flushed >= _BUFFERED_S:
            self.flush()
        self._trace.count(ended)

    def calls(self, index: int, count: int, began: float, ended: float) -> None:
        super().calls(index, count, began, ended)
        ts, dur = self._trace.us(began), (ended - began) * 1e6
        self._buffer.append(
            f'{self._slice}{ts:.3f},"dur":{dur:.3f},"args":{{"item":{index},"items":{count}}}}}'
        )

    def emitted(self, index: int) -> None:
        super().emitted(index)
        if self._flow.emits:
            self._buffer.append(self._arrows_on % (self._trace.us(perf_counter()), index))

    def starved(self, seconds: float) -> None:
        super().starved(seconds)
        self._wait("waits for input", seconds)

    def blocked(self, seconds: float) -> None:
        super().blocked(seconds)
        self._wait("waits for room", seconds)

    def flush(self) -> None:
        """Write what is buffered."""
        events, self._buffer = self._buffer, []
        self._flushed = perf_counter()
        self._trace.write(events)

    def _wait(self, what: str, seconds: float) -> None:
        if seconds >= SHOWN_WAIT_S:
            now = perf_counter()
            self._waited_until = (
                now  # the next call may have begun since: slices that overlap are not shown right
            )
            ts = self._trace.us(now - seconds)
            self._buffer.append(
                f'{{"ph":"X","name":"{what}","cat":"wait","pid":{_PID},"tid":{self.track},'
                f'"ts":{ts:.3f},"dur":{seconds * 1e6:.3f}}}'
            )


def _metadata(what: str, track: int, name: str) -> str:
    return f'{{"ph":"M","name":"{what}","pid":{_PID},"tid":{track},"args":{{"name":{json.dumps(name)}}}}}'


def _arrow(phase: str, numbered_by: str, track: int) -> str:
    """An event of an item's flow, with places for its time and number."""
    name = json.dumps(numbered_by).replace("%", "%%")
    ends = ',"bp":"e"' if phase == "f" else ""
    return (
        f'{{"ph":"{phase}","name":{name},"cat":"item","pid":{_PID},"tid":{track},"ts":%.3f,'
        f'"id":{name[:-1]}-%d"{ends}}}'
    )
