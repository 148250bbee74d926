"""What a stage does about failures: try again, or drop the item and keep a record of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .errors import StageFailed
from .protocols import Sink


@dataclass(frozen=True, slots=True)
class Retry:
    """Call again after a transient error, waiting longer each time.

    The delay before attempt k is drawn from [d/2, d] with d = min(first_s * factor^(k-2), most_s): without the
    drawing, all ranks of a job would come back to an overloaded store at the same instant.
    """

    on: tuple[type[Exception], ...]
    """The errors that are transient, by name: everything else fails at once."""
    attempts: int = 5
    """Calls in all, the first included."""
    first_s: float = 0.1
    factor: float = 2.0
    most_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.on or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in self.on):
            raise ValueError(f"Retry: on must name one or more Exception classes, got {self.on!r}")
        if self.attempts < 2:
            raise ValueError(f"Retry: attempts must be >= 2, got {self.attempts}")
        if self.first_s < 0 or self.most_s < 0 or self.factor < 1:
            raise ValueError(
                f"Retry: first_s and most_s must be >= 0 and factor >= 1, "
                f"got {self.first_s}, {self.most_s}, {self.factor}"
            )

    def again(self, error: BaseException, attempts: int) -> bool:
        """Whether to call again after the `attempts`-th call raised `error`."""
        return attempts < self.attempts and isinstance(error, self.on)

    def delay_s(self, attempts: int) -> float:
        """Seconds to wait after `attempts` calls."""
        try:
            longest = min(self.first_s * self.factor ** (attempts - 1), self.most_s)
        except OverflowError:
            longest = self.most_s if self.first_s else 0.0
        return longest * random.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The record of an item that a map failed on, and that the plan went on without."""

    failure: StageFailed
    """Stage, index, reason and provenance; its `__cause__` is what the map raised."""
    value: object
    """The map's input."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Go on without the items that a map raises an Exception on, up to a bound.

    Records reach the sink in the order of the items, from one thread at a time. The count of the dropped is part of
    an item's `resume`; the record of an item that was dropped after the last one used is put again after a resume.
    """

    to: Sink[Dropped]
    at_most: int
    """How many since the beginning, over all resumes; one more is a failure."""

    def __post_init__(self) -> None:
        if self.at_most < 1:
            raise ValueError(f"Drop: at_most must be >= 1, got {self.at_most}")
