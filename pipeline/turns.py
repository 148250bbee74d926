"""Turns at a stage's input for worker threads."""

from __future__ import annotations

import threading
from time import perf_counter

from .intake import Intake
from .statistics import Meter
from .waiting import ThreadBell
from .window import Slot


class Turns:
    """Lets one thread at a time wait for room and for input, so that slots and inputs are paired in order."""

    def __init__(self, intake: Intake, room: ThreadBell, filled: ThreadBell) -> None:
        self._intake = intake
        self._room = room
        self._filled = filled
        self._turn = threading.Lock()

    def admit(self, meter: Meter) -> list[Slot]:
        """The next calls, in order; none when the stage is over. Raises Stopped."""
        with self._turn:
            return self._wait_and_take(meter)

    def try_to_admit(self, wait_s: float) -> list[Slot]:
        """The next calls if there are any, room for them comes within `wait_s`, and no other thread is at its turn."""
        if not self._turn.acquire(blocking=False):
            return []
        try:
            intake = self._intake
            if intake.over or not intake.may_take():
                return []
            self._room.wait(intake.may_reserve, wait_s)
            if not intake.may_reserve():
                return []
            return intake.admit(intake.most())
        finally:
            self._turn.release()

    def stop(self) -> None:
        """Let all waits raise Stopped, now and later."""
        self._room.stop()
        self._filled.stop()

    def _wait_and_take(self, meter: Meter) -> list[Slot]:
        intake = self._intake
        while not intake.over:
            if not intake.may_reserve():
                intake.source.taker_pauses()
                began = perf_counter()
                self._room.wait(intake.may_reserve)
                meter.blocked(perf_counter() - began)
            if not intake.may_take():
                intake.source.taker_pauses()
                began = perf_counter()
                self._filled.wait(intake.may_take)
                meter.starved(perf_counter() - began)
                if not intake.may_reserve():  # of the input that has come, the output may be a large one
                    continue
            if slots := intake.admit(intake.most()):
                return slots
        return []
