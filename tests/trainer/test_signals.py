"""The first signal asks, one soon after is the same request, a later one ends at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from trainer import signals
from trainer.signals import stop_on_signal


def test_a_signal_is_noted_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signal() as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        # Within the same request: the launcher passes on what the terminal has sent already.
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_request_ends_at_once() -> None:
    code = (
        "import os, signal; from trainer import signals; signals.REPEAT_S = -1.0\n"
        "with signals.stop_on_signal():\n"
        "    for _ in range(2): os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    assert signals.REPEAT_S > 0
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGTERM
