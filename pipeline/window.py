"""The hand-off between two stages: an ordered window of slots.

A stage *reserves* a slot in its output window as it takes the input that will fill it, and *publishes* it when the
result is there, in any order and from any thread. The next stage *takes* the oldest slot once it is published. So
order costs nothing, and a window of `ahead` slots bounds running calls and waiting results alike.

There is no wake-up per item: a side that waits is woken once and then finds all that has come together in the
meantime, and whoever waits for room is woken only when half of the window is free, or when the other side has
nothing left to do.

Each window has one reserving side and one taking side; where a side has several workers, they take turns.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Protocol

from .errors import PipelineError
from .item import State
from .waiting import Bell


class Kind(Enum):
    """What a slot holds."""

    PENDING = 0
    """Nothing yet that the next stage may see; while a map works on it, the map's input."""
    VALUE = 1
    DROPPED = 2
    """The record of an item that failed and is to be dropped."""
    END = 3
    """The last slot of every window: None, or the error of the stage that failed here."""


# Looking a member up on its class costs more than the comparison.
PENDING, VALUE, DROPPED, END = Kind.PENDING, Kind.VALUE, Kind.DROPPED, Kind.END


class Slot:
    """A place in a window's order."""

    __slots__ = ("index", "kind", "nbytes", "resume", "value")

    def __init__(self, kind: Kind, index: int, value: object, resume: State | None, nbytes: int) -> None:
        self.kind = kind
        self.index = index
        self.value = value
        self.resume = resume
        self.nbytes = nbytes

    @classmethod
    def last(cls, error: PipelineError | None, index: int) -> Slot:
        """The last slot of a window."""
        return cls(END, index, error, None, 0)

    def end(self, error: PipelineError | None = None) -> None:
        """Make this the last slot of its window."""
        self.value = error
        self.resume = None
        self.nbytes = 0
        self.kind = END


class Gate(Protocol):
    """What slots go through, in order, as they are taken."""

    def passing(self, slot: Slot) -> Slot | None:
        """The slot to go on with, None where there is none."""
        ...


class Window:
    """Slots in order, at most `ahead`."""

    def __init__(self, ahead: int, room: Bell, filled: Bell, gate: Gate | None) -> None:
        self.ahead = ahead
        self.room_bell = room
        """Rung for the side that reserves."""
        self.filled_bell = filled
        """Rung for the side that takes."""
        self._slots: deque[Slot] = deque()
        self._low = ahead // 2
        self._gate = gate

    def __len__(self) -> int:
        return len(self._slots)

    def has_room(self) -> bool:
        """Whether a slot may be reserved. For the reserving side, for which a yes stays a yes."""
        return len(self._slots) < self.ahead

    def room(self) -> int:
        """How many slots may be reserved. For the reserving side it only grows."""
        return self.ahead - len(self._slots)

    def reserve(self, slots: list[Slot]) -> None:
        """Make `slots`, which are PENDING, the next ones in order; there must be room."""
        self._slots.extend(slots)

    def push(self, slot: Slot) -> None:
        """Reserve and publish at once a slot that is not PENDING; there must be room."""
        self._slots.append(slot)
        if self.filled_bell.waiting:
            self.filled_bell.ring()

    def published(self) -> None:
        """Say that a slot's kind is no longer PENDING. From any thread."""
        if self.filled_bell.waiting and self.is_ready():
            self.filled_bell.ring()

    def is_ready(self) -> bool:
        """Whether the oldest slot is published. For the taking side a yes stays a yes."""
        try:
            return self._slots[0].kind is not PENDING
        except IndexError:  # no slots; asking for their number first would race with the taker
            return False

    def next_bytes(self) -> int:
        """What the oldest slot weighs, 0 where there is none. For the taking side."""
        slots = self._slots
        return slots[0].nbytes if slots else 0

    def take_values(self, most: int) -> list[Slot]:
        """The oldest slots as long as they are published values, at most `most`; none where something else is first."""
        slots = self._slots
        taken: list[Slot] = []
        if self._gate is None:
            while len(taken) < most and slots and slots[0].kind is VALUE:
                taken.append(slots.popleft())
            if self.room_bell.waiting and len(slots) <= self._low:
                self.room_bell.ring()
        return taken

    def take(self) -> Slot | None:
        """The oldest slot, which must be ready; None where the gate kept it."""
        slot = self._slots.popleft()
        if self.room_bell.waiting and len(self._slots) <= self._low:
            self.room_bell.ring()
        return slot if self._gate is None else self._gate.passing(slot)

    def taker_pauses(self) -> None:
        """Say that the taking side is about to wait: whoever waits for room need not wait for half a window."""
        if self.room_bell.waiting and self.has_room():
            self.room_bell.ring()
