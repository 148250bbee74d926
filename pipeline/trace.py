"""The life of each item, in Chrome's trace format: open the file in Perfetto or chrome://tracing.

One track for each worker, in the plan's order. On it a slice for each call, and one for each wait of more than a
millisecond; arrows join the calls that one item went through (what a fold emits begins anew); counters show how full
the windows are. The format is that of Google's document "Trace Event Format", its array form, in which the closing
bracket may be missing: a file that a kill cut short opens too.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeAlias

from .errors import PipelineError
from .statistics import Meter

_BUFFERED = 256
"""Events that a worker holds before they are written."""
_SHOWN_WAIT_S = 1e-3
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
    """One file. PipelineError (exit code 2): it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._began = perf_counter()
        self._counted = self._began
        self._meters: list[TracedMeter] = []
        self._failure: OSError | None = None
        self.depths: Depths = dict
        """What the counters show; set by the engine."""
        try:
            self._file: int | None = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            refused = PipelineError(f"trace {path}: cannot be written: {error.strerror}; name another file")
            refused.exit_code = 2
            raise refused from error
        self._write("[\n")

    def meter(self, stage: str, number: int, flow: Flow) -> TracedMeter:
        """A meter whose calls are traced, for the worker `number` of `stage`."""
        meter = TracedMeter(self, stage, len(self._meters) + 1, flow)
        self._meters.append(meter)
        self.write(
            _event("M", "thread_name", meter.track, args={"name": f"{stage}-{number}"}),
            _event("M", "thread_sort_index", meter.track, args={"sort_index": meter.track}),
        )
        return meter

    def us(self, seconds: float) -> float:
        """Microseconds since the trace began, of a `time.perf_counter`."""
        return _us(seconds - self._began)

    def count(self, now: float) -> None:
        """Write the counters, if it is time to."""
        if now - self._counted < _COUNT_EVERY_S:
            return
        self._counted = now
        ts = self.us(now)
        self.write(
            *(_event("C", name, 0, ts=ts, args={"value": value}) for name, value in self.depths().items())
        )

    def write(self, *events: str) -> None:
        """Append events. From any thread."""
        if events:
            self._write("".join(f"{event},\n" for event in events))

    def close(self) -> None:
        """Write what is left, and the end. PipelineError: the file could not be written whole."""
        for meter in self._meters:
            meter.flush()
        self._write(_event("M", "process_name", 0, args={"name": "pipeline"}) + "\n]\n")
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise PipelineError(f"trace {self._path}: could not be written: {failure.strerror}") from failure

    def _write(self, text: str) -> None:
        data = memoryview(text.encode())
        with self._lock:
            try:
                while data and self._file is not None and self._failure is None:
                    data = data[os.write(self._file, data) :]
            except OSError as error:
                self._failure = error  # the plan goes on; close() tells


class TracedMeter(Meter):
    """A meter that also writes what it counts."""

    __slots__ = ("_buffer", "_flow", "_stage", "_trace", "track")

    one_by_one = True

    def __init__(self, trace: Trace, stage: str, track: int, flow: Flow) -> None:
        super().__init__()
        self.track = track
        self._trace = trace
        self._stage = stage
        self._flow = flow
        self._buffer: list[str] = []

    def call(self, index: int, began: float, ended: float) -> None:
        super().call(index, began, ended)
        ts = self._trace.us(began)
        args = {} if index < 0 else {"item": index}
        self._add(_event("X", self._stage, self.track, ts=ts, dur=_us(ended - began), cat="call", args=args))
        if index >= 0 and self._flow.phase is not None:
            self._arrow(self._flow.phase, self._flow.numbered_by, index, ts)
        self._trace.count(ended)

    def emitted(self, index: int) -> None:
        super().emitted(index)
        if self._flow.emits:
            self._arrow("s", self._stage, index, self._trace.us(perf_counter()))

    def starved(self, seconds: float) -> None:
        super().starved(seconds)
        self._wait("waits for input", seconds)

    def blocked(self, seconds: float) -> None:
        super().blocked(seconds)
        self._wait("waits for room", seconds)

    def flush(self) -> None:
        """Write what is buffered."""
        events, self._buffer = self._buffer, []
        self._trace.write(*events)

    def _arrow(self, phase: str, numbered_by: str, index: int, ts: float) -> None:
        # An arrow ends at the slice around it ("e"), not at the next one on its track.
        ends = {"bp": "e"} if phase == "f" else {}
        self._add(
            _event(phase, numbered_by, self.track, ts=ts, cat="item", id=f"{numbered_by}-{index}", **ends)
        )

    def _wait(self, what: str, seconds: float) -> None:
        if seconds >= _SHOWN_WAIT_S:
            ts = self._trace.us(perf_counter() - seconds)
            self._add(_event("X", what, self.track, ts=ts, dur=_us(seconds), cat="wait"))

    def _add(self, event: str) -> None:
        self._buffer.append(event)
        if len(self._buffer) >= _BUFFERED:
            self.flush()


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _event(phase: str, name: str, track: int, **more: object) -> str:
    return json.dumps({"ph": phase, "name": name, "pid": _PID, "tid": track, **more}, separators=(",", ":"))
