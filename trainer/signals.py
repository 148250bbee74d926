"""Ending a run from outside: the first SIGTERM or SIGINT asks, the second one ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Set by a signal; the loop looks at it between two steps."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Within the block SIGTERM and SIGINT are noted once; a second one has its default effect."""
    request = StopRequest()
    watched = (signal.SIGTERM, signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        request.signal = signal.Signals(number)
        for each in watched:
            signal.signal(each, signal.SIG_DFL)

    before = {each: signal.signal(each, note) for each in watched}
    try:
        yield request
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
