"""Ending a run from outside: the first SIGTERM or SIGINT asks, a second one ends at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

REPEAT_S = 2.0
"""Signals this soon after the first are the same request: at a terminal, Ctrl-C reaches a rank directly and again
through its launcher."""


class StopRequest:
    """Set by a signal; the loop looks at it between two steps."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._at = 0.0

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._at = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._at > REPEAT_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Within the block SIGTERM and SIGINT are noted; a later one has its default effect."""
    request = StopRequest()
    before = {number: signal.signal(number, request.note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
