"""What a bench gives: named sides, each of which does one round of the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

OURS = "headrace"
LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a bench may depend on."""

    cache: Path
    """Where prepared inputs are kept from one run to the next; exists."""
    workers: int
    """Threads that each side may use."""
    tokenizer: Path | None = None
    """A tokenizer.json to measure with, in place of the bench's own."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one side."""

    rate: float
    """Work per second: higher is better, in the unit of its Sides."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Whatever else was seen, by name with its unit (`cpu_s`, `wait_ms`): the median over the rounds is reported."""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ValueError(f"a rate is above 0, got {self.rate}")


Side: TypeAlias = Callable[[], Round]
Derive: TypeAlias = Callable[[Mapping[str, float]], Mapping[str, float]]
"""From the sides' rates in one round to figures by `SIDE.FIGURE`: their medians are reported."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The sides of one bench: "headrace", "limit", and any number of others, all over the same work."""

    unit: str
    """Of every rate, such as "tokens/s"."""
    sides: Mapping[str, Side]
    workload: str = ""
    """Which work it is, where a bench has several."""
    derive: Derive = lambda rates: {}
    """Figures that take several sides to tell."""

    def __post_init__(self) -> None:
        if OURS not in self.sides or len(self.sides) < 2:
            raise ValueError(f"a bench has the side {OURS!r} and another, got {', '.join(self.sides)}")


Bench: TypeAlias = Callable[[Settings], "AbstractContextManager[Sides | Iterator[Sides]]"]
"""Gives its Sides, or one after the other those of several workloads: each is done with when the next is asked for."""
