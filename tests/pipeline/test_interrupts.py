"""Ctrl-C between any two lines, of a start and of an end too, leaves nothing running and nothing open."""

from __future__ import annotations

import dis
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count, islice
from pathlib import Path
from types import CodeType, FrameType

import pytest

import pipeline
from pipeline import Plan, start
from tests.pipeline.sources import Batches, Count, double, triple

PACKAGE = str(Path(pipeline.__file__).parent)


class Interrupts:
    """Raises KeyboardInterrupt in this thread before the `number`-th line of the engine's that it comes to."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.place = ""
        """File and line, once it was raised."""

    @contextmanager
    def raised(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Callable[..., object] | None:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., object] | None:
        # The line of a `with` comes again before its block is left, where no signal is handled.
        if event == "line" and frame.f_lasti == _first_offsets(frame.f_code).get(frame.f_lineno):
            if self.left == 0:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
            self.left -= 1
        return self._line


@cache
def _first_offsets(code: CodeType) -> dict[int, int]:
    """Where the code of each line begins."""
    offsets: dict[int, int] = {}
    for offset, line in dis.findlinestarts(code):
        offsets.setdefault(line, offset)
    return offsets


def in_this_process() -> Plan[list[int]]:
    return Plan(Count(40), ahead=3).map(double, width=2).map(triple, width=2).fold(Batches(2))


def in_processes() -> Plan[int]:
    return Plan(Count(40)).map(triple, on="process")


def used(plan: Plan[object], interrupts: Interrupts) -> bool:
    """Start and leave `plan`; gives whether it was interrupted."""
    try:
        with interrupts.raised(), start(plan) as running:
            for _ in islice(running, 3):
                pass
    except KeyboardInterrupt:
        return True
    return False


def threads() -> set[threading.Thread]:
    # One whose start was interrupted before it began is listed for ever.
    return {thread for thread in threading.enumerate() if thread.ident is not None}


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    ("make", "step"),
    [
        pytest.param(in_this_process, 11, id="some"),
        pytest.param(in_processes, 97, id="some-in-processes"),
        pytest.param(in_this_process, 1, id="each", marks=pytest.mark.slow),
        pytest.param(in_processes, 3, id="more-in-processes", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left(make: Callable[[], Plan[object]], step: int) -> None:
    used(make(), Interrupts(10**9))  # what is made once for all is there
    threads_before, descriptors_before = threads(), descriptors()
    for number in count(0, step):
        interrupts = Interrupts(number)
        interrupted = used(make(), interrupts)
        gc.collect()
        ends = time.monotonic() + 2
        while left := threads() - threads_before:
            assert time.monotonic() < ends, f"interrupted at {interrupts.place}: {left} go on"
            left.pop().join(0.1)
        assert descriptors() == descriptors_before, f"interrupted at {interrupts.place}"
        if not interrupted:
            break
    assert number > 200 if step == 1 else number > 0
