"""The bench's end of a side that runs in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import IO, cast

from tools.bench.engine.measuring import Seen
from tools.bench.engine.server import Request
from tools.bench.engine.workloads import Workload

LEAVE_S = 5.0
"""How long a side has to end by itself; then its processes are killed."""
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Freed arrays stay with their process. Whether they do by default depends on what else lies on a heap:
a bare loop over arrays of 1 MiB is 10 times slower in one process than in the next."""


class SideFailed(Exception):
    """A side could not be started, or ended: the message has the last of what it wrote to standard error."""

    exit_code = 1


class Session:
    """A side at work on one workload. Each method raises SideFailed."""

    def __init__(self, name: str, process: subprocess.Popen[str], errors: IO[bytes]) -> None:
        self._name, self.process, self._errors = name, process, errors
        began = perf_counter()
        self.first = cast("list[object]", self._answer())
        """The numbers of its first items."""
        self.start_s = perf_counter() - began
        """From the start of its process to its first items, imports included."""

    def read(self, warm_s: float, seconds: float) -> Seen:
        """Let it be read for `seconds`, after `warm_s` unmeasured."""
        seen = cast("dict[str, float]", self._ask({"warm_s": warm_s, "seconds": seconds}))
        return Seen(items=int(seen.pop("items")), **seen)

    def take(self, strides: int) -> list[object]:
        """The numbers of its next items."""
        return cast("list[object]", self._ask({"take": strides}))

    def _ask(self, request: Request) -> object:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failed() from error
        return self._answer()

    def _answer(self) -> object:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise self._failed()
        answer: object = json.loads(line)
        return answer

    def _failed(self) -> SideFailed:
        code = self.process.wait()
        self._errors.seek(0)
        told = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return SideFailed(f"{self._name} ended with exit code {code}:\n" + "\n".join(told[-20:]))


@contextmanager
def session(side: str, workload: Workload) -> Iterator[Session]:
    """Start `side` on `workload`. All of its processes end with the block."""
    command = ("-m", "tools.bench.engine.server", side, workload.name, str(workload.width))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *command, str(Path(folder) / "stamps")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={**os.environ, **_ALLOCATOR},
        )
        try:
            yield Session(f"{workload.name}: {side}", process, errors)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it has ended already
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(LEAVE_S)
    with suppress(ProcessLookupError):  # nothing that it started is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
