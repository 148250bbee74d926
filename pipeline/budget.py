"""The byte budget: what all windows of a plan hold together, and who may add to it.

A stage asks before it reserves, with what it expects its output to weigh: its last outputs' mean. Over the budget,
one call at a time may go on, that of the item furthest on its way: all others wait until something is consumed. So
a plan whose maps make more of what they get cannot lock itself up with a full budget upstream, and a single item
larger than the budget passes alone.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import cast

from .waiting import Bell
from .window import Window

DEFAULT_BYTES = 512 << 20

_UNKNOWN_BYTES = 1 << 10
_SAMPLE = 32
"""Elements of a long container that are weighed; the others are taken to weigh as much."""


def size_of(value: object) -> int:
    """Bytes that `value` keeps in memory, estimated in about a µs.

    What has an `nbytes` (arrays, tensors, Arrow tables, one's own classes) says it itself. Containers and the
    fields of other objects are added up, two levels deep; of a long container a sample is weighed.
    """
    if type(value) is int:
        return 32
    try:
        return _size_of(value, 2)
    except Exception:  # noqa: BLE001 - an object's own attributes and size are code that may raise anything
        return _UNKNOWN_BYTES


def _size_of(value: object, depth: int) -> int:
    kind = type(value)
    if kind is float or kind is int or kind is bool or value is None:
        return 32
    nbytes = getattr(value, "nbytes", None)
    if type(nbytes) is int:
        return nbytes + 128
    size = sys.getsizeof(value, 64)
    if kind is str or kind is bytes or kind is bytearray or depth == 0:
        return size
    if isinstance(value, dict):
        return size + _size_of_all(list(value.values()), depth - 1)
    if isinstance(value, list | tuple | set | frozenset):
        return size + _size_of_all(value if isinstance(value, list | tuple) else list(value), depth - 1)
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict):
        return size + _size_of_all(list(fields.values()), depth - 1)
    names = getattr(kind, "__slots__", None)
    if isinstance(names, tuple | list):
        return size + _size_of_all([getattr(value, cast("str", name), None) for name in names], depth - 1)
    return size


def _size_of_all(values: Sequence[object], depth: int) -> int:
    if len(values) <= _SAMPLE:
        return sum(_size_of(value, depth) for value in values)
    step = len(values) // _SAMPLE
    sample = values[::step]
    return sum(_size_of(value, depth) for value in sample) * len(values) // len(sample)


class Budget:
    """Bytes in flight, with a limit."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise ValueError(f"budget_bytes must be >= 1, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()
        self._claims: list[Claim] = []

    def claim(self, bell: Bell, downstream: Sequence[Window]) -> Claim:
        """One stage's claim: `downstream` are the windows from its output on, `bell` wakes whoever reserves."""
        claim = Claim(self, bell, tuple(downstream))
        self._claims.append(claim)
        return claim

    def add(self, nbytes: int) -> None:
        """Account for `nbytes` more; negative for less. From any thread."""
        with self._lock:  # += in several threads would lose some
            self.used_bytes += nbytes
        if nbytes < 0:
            for claim in self._claims:
                if claim.denied and claim.bell.waiting:
                    claim.bell.ring()


class Claim:
    """A stage's access to the budget."""

    __slots__ = ("_budget", "_downstream", "bell", "denied")

    def __init__(self, budget: Budget, bell: Bell, downstream: tuple[Window, ...]) -> None:
        self._budget = budget
        self._downstream = downstream
        self.bell = bell
        self.denied = False

    def allows(self, nbytes: int) -> bool:
        """Whether the stage may go on to make `nbytes`."""
        self.denied = True  # first: bytes given back from here on ring the bell
        budget = self._budget
        if budget.used_bytes + nbytes <= budget.limit_bytes or all(
            len(each) == 0 for each in self._downstream
        ):
            self.denied = False
        return not self.denied

    def room_for(self, nbytes: int) -> int:
        """How many outputs of `nbytes` still fit."""
        budget = self._budget
        return max(0, budget.limit_bytes - budget.used_bytes) // max(1, nbytes)
