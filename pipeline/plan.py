"""The plan: a source and what is done to its items, checked when it is built."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar, cast, overload

from .protocols import Source

A = TypeVar("A")
B = TypeVar("B")
T_co = TypeVar("T_co", covariant=True)

Place: TypeAlias = Literal["loop", "thread"]

AHEAD = 16
"""Items that a stage holds at most by default: half of them share a hop between threads (tens of µs)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A plan's first stage: reads a source."""

    name: str
    source: Source[object]
    ahead: int

    def __post_init__(self) -> None:
        _check_at_least_one(self.name, "ahead", self.ahead)


@dataclass(frozen=True, slots=True)
class Mapping:
    """A stage that calls a function on each value, up to `width` at a time."""

    name: str
    function: Callable[[object], object]
    width: int
    place: Place
    ahead: int

    def __post_init__(self) -> None:
        _check_at_least_one(self.name, "width", self.width)
        _check_at_least_one(self.name, "ahead", self.ahead)
        if self.ahead < self.width:
            raise ValueError(
                f"{self.name}: ahead must be >= width, or calls could not overlap so far; "
                f"got ahead={self.ahead}, width={self.width}"
            )
        if self.place not in ("loop", "thread"):
            raise ValueError(f"{self.name}: on must be 'loop' or 'thread', got {self.place!r}")
        if self.place == "thread" and is_coroutine_function(self.function):
            raise ValueError(f"{self.name}: an async def runs on the loop: leave on= out, or give on='loop'")


class Plan(Generic[T_co]):
    """An immutable description of a pipeline that yields values of type `T_co`; `start` runs it.

    ```
    plan = Plan(source).map(decode, width=4).map(collate, ahead=2)
    ```

    `map` returns a new plan. A plan may be started many times, also at the same time.
    """

    __slots__ = ("_mappings", "_reading")

    def __init__(self, source: Source[T_co], *, name: str = "source", ahead: int = AHEAD) -> None:
        """Begin with `source`, of which at most `ahead` items wait. ValueError: `ahead` < 1."""
        self._reading = Reading(name, source, ahead)
        self._mappings: tuple[Mapping, ...] = ()

    @property
    def reading(self) -> Reading:
        """The first stage."""
        return self._reading

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """The stages after it, in order."""
        return self._mappings

    @property
    def names(self) -> tuple[str, ...]:
        """Every stage's name, in order."""
        return (self._reading.name, *(mapping.name for mapping in self._mappings))

    @overload
    def map(
        self,
        function: Callable[[T_co], Awaitable[B]],
        *,
        width: int = ...,
        on: Place | None = ...,
        name: str | None = ...,
        ahead: int | None = ...,
    ) -> Plan[B]: ...

    @overload
    def map(
        self,
        function: Callable[[T_co], B | Awaitable[B]],
        *,
        width: int = ...,
        on: Place | None = ...,
        name: str | None = ...,
        ahead: int | None = ...,
    ) -> Plan[B]: ...

    def map(
        self,
        function: Callable[[T_co], B | Awaitable[B]],
        *,
        width: int = 1,
        on: Place | None = None,
        name: str | None = None,
        ahead: int | None = None,
    ) -> Plan[B]:
        """Call `function` on each value, up to `width` calls at a time; results keep the order of the inputs.

        `on`: "loop" or "thread"; by default an async def runs on the loop and a def in threads. A def may be
        put on the loop too, where it saves the hop to a thread: only if it takes microseconds, since
        everything else waits. `name`: by default the function's. `ahead`: how many items the stage holds at
        most, running calls and results that wait for the next stage together; by default 16, or twice the
        width where that is more.

        ValueError: `width` or `ahead` < 1, `ahead` < `width`, a name that the plan has already, an async def
        in threads.
        """
        erased = cast("Callable[[object], object]", function)  # the signature above holds the stages together
        mapping = Mapping(
            name=self._name_of(function) if name is None else self._new(name),
            function=erased,
            width=width,
            place=on if on is not None else ("loop" if is_coroutine_function(erased) else "thread"),
            ahead=max(AHEAD, 2 * width) if ahead is None else ahead,
        )
        longer: Plan[B] = object.__new__(Plan)
        longer._reading = self._reading
        longer._mappings = (*self._mappings, mapping)
        return longer

    def __repr__(self) -> str:
        return f"Plan({' -> '.join(self.names)})"

    def _new(self, name: str) -> str:
        if name in self.names:
            raise ValueError(f"{name}: the plan has a stage of that name already: {', '.join(self.names)}")
        return name

    def _name_of(self, function: object) -> str:
        while (inner := getattr(function, "func", None)) is not None:  # functools.partial
            function = inner
        stem = getattr(function, "__name__", None) or type(function).__name__
        taken, name, number = set(self.names), str(stem), 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        return name


def is_coroutine_function(function: object) -> bool:
    """Whether calling it gives a coroutine: an async def, a partial of one, an object with an async
    __call__."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _check_at_least_one(stage: str, what: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{stage}: {what} must be >= 1, got {value}")
