"""The plan: a source and what is done to its items, checked when it is built."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeAlias, TypeVar, cast, overload

from .errors import TimeLimit
from .policy import Drop, Retry
from .protocols import Fold, Source

A = TypeVar("A")
B = TypeVar("B")
T_co = TypeVar("T_co", covariant=True)

Place: TypeAlias = Literal["loop", "thread", "process"]

AHEAD = 64
"""Items that a stage holds at most by default: half of them share a hop between threads (tens of µs)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A plan's first stage: reads a source."""

    name: str
    source: Source[object]
    ahead: int
    retry: Retry | None

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
    time_limit_s: float | None
    retry: Retry | None
    on_error: Drop | None

    def __post_init__(self) -> None:
        _check_at_least_one(self.name, "width", self.width)
        _check_at_least_one(self.name, "ahead", self.ahead)
        if self.ahead < self.width:
            raise ValueError(
                f"{self.name}: ahead must be >= width, or calls could not overlap so far; "
                f"got ahead={self.ahead}, width={self.width}"
            )
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise ValueError(f"{self.name}: time_limit_s must be > 0, got {self.time_limit_s}")
        if self.place not in ("loop", "thread", "process"):
            raise ValueError(f"{self.name}: on must be 'loop', 'thread' or 'process', got {self.place!r}")
        if self.place != "loop" and is_coroutine_function(self.function):
            raise ValueError(f"{self.name}: an async def runs on the loop: leave on= out, or give on='loop'")
        if (
            self.place == "loop"
            and self.time_limit_s is not None
            and not is_coroutine_function(self.function)
        ):
            raise ValueError(
                f"{self.name}: nothing can interrupt a def on the loop: for a time limit leave on= out"
            )
        if self.place != "loop" and self.retry is not None and TimeLimit in self.retry.on:
            raise ValueError(
                f"{self.name}: a call in a {self.place} that runs over its time limit is not made again: "
                "leave TimeLimit out of Retry(on=...), or write an async def"
            )
        if self.place == "process":
            _check_pickles(self.name, self.function)


@dataclass(frozen=True, slots=True)
class Folding:
    """A stage that joins and splits values, one call at a time in a thread of its own."""

    name: str
    fold: Fold[object, object]
    ahead: int

    def __post_init__(self) -> None:
        _check_at_least_one(self.name, "ahead", self.ahead)
        for method in ("accept", "emit", "finish", "state", "restore"):
            if not callable(getattr(self.fold, method, None)):
                raise ValueError(f"{self.name}: a fold has a method {method}(), {self.fold!r} has none")
        if isinstance(self.fold, type):
            raise ValueError(f"{self.name}: give an instance of {self.fold.__name__}, not the class")


Stage: TypeAlias = Mapping | Folding


class Plan(Generic[T_co]):
    """An immutable description of a pipeline that yields values of type `T_co`; `start` runs it.

    ```
    plan = Plan(source).map(decode, width=4).fold(Batches(8)).map(collate, ahead=2)
    ```

    `map` and `fold` return a new plan. A plan may be started many times, also at the same time.
    """

    __slots__ = ("_reading", "_stages")

    def __init__(
        self, source: Source[T_co], *, name: str = "source", ahead: int = AHEAD, retry: Retry | None = None
    ) -> None:
        """Begin with `source`, of which at most `ahead` items wait. ValueError: `ahead` < 1.

        `retry`: after a transient error the source is read again from the last item's `resume`; an item starts the
        count of attempts anew.
        """
        self._reading = Reading(name, source, ahead, retry)
        self._stages: tuple[Stage, ...] = ()

    @property
    def reading(self) -> Reading:
        """The first stage."""
        return self._reading

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages after it, in order."""
        return self._stages

    @property
    def names(self) -> tuple[str, ...]:
        """Every stage's name, in order."""
        return (self._reading.name, *(stage.name for stage in self._stages))

    @property
    def stateful(self) -> tuple[str, ...]:
        """Names of the stages whose state is part of an item's `resume`: folds, and maps that drop items."""
        return tuple(
            stage.name for stage in self._stages if isinstance(stage, Folding) or stage.on_error is not None
        )

    @overload
    def map(
        self,
        function: Callable[[T_co], Awaitable[B]],
        *,
        width: int = ...,
        on: Place | None = ...,
        name: str | None = ...,
        ahead: int | None = ...,
        time_limit_s: float | None = ...,
        retry: Retry | None = ...,
        on_error: Drop | None = ...,
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
        time_limit_s: float | None = ...,
        retry: Retry | None = ...,
        on_error: Drop | None = ...,
    ) -> Plan[B]: ...

    def map(
        self,
        function: Callable[[T_co], B | Awaitable[B]],
        *,
        width: int = 1,
        on: Place | None = None,
        name: str | None = None,
        ahead: int | None = None,
        time_limit_s: float | None = None,
        retry: Retry | None = None,
        on_error: Drop | None = None,
    ) -> Plan[B]:
        """Call `function` on each value, up to `width` calls at a time; results keep the order of the inputs.

        `on`: "loop", "thread" or "process"; by default an async def runs on the loop and a def in threads. A def may
        be put on the loop too, where it saves the hop to a thread: only if it takes microseconds, since everything
        else waits. A process is for Python code that computes: the function must pickle, values that hold large
        buffers (arrays) cross through shared memory, and each of the `width` processes is started once.

        `name`: by default the function's. `ahead`: how many items the stage holds at most, running calls and results
        that wait for the next stage together; by default 64, or twice the width where that is more. Where calls take
        microseconds, a worker takes several at once: give a larger `ahead` to very small items.

        `time_limit_s`: of one call. A call that runs over it fails: on the loop it is cancelled, a process is killed, a
        thread is abandoned. `retry`: which errors are transient, and how often to call again. `on_error`: drop an item
        that fails, up to a bound, in place of failing the plan; interrupts and exits always fail it.

        ValueError: `width` or `ahead` < 1, `ahead` < `width`, a name that the plan has already, an async def in
        threads or processes, a function for processes that does not pickle, a limit that cannot be kept.
        """
        erased = cast("Callable[[object], object]", function)  # the signature above holds the stages together
        mapping = Mapping(
            name=self._name_of(function) if name is None else self._new(name),
            function=erased,
            width=width,
            place=on if on is not None else ("loop" if is_coroutine_function(erased) else "thread"),
            ahead=max(AHEAD, 2 * width) if ahead is None else ahead,
            time_limit_s=time_limit_s,
            retry=retry,
            on_error=on_error,
        )
        return self._and(mapping)

    def fold(self, fold: Fold[T_co, B], *, name: str | None = None, ahead: int = AHEAD) -> Plan[B]:
        """Join and split values with `fold`, whose state becomes part of the items' `resume`.

        The fold is a prototype: each start works on a `copy.deepcopy` of it. `name`: by default its class's.

        ValueError: `ahead` < 1, a name that the plan has already, an object without a fold's methods.
        """
        erased = cast("Fold[object, object]", fold)
        return self._and(Folding(self._name_of(fold) if name is None else self._new(name), erased, ahead))

    def _and(self, stage: Stage) -> Plan[B]:
        longer: Plan[B] = object.__new__(Plan)
        longer._reading = self._reading
        longer._stages = (*self._stages, stage)
        return longer

    def __repr__(self) -> str:
        return f"Plan({' -> '.join(self.names)})"

    def _new(self, name: str) -> str:
        if name in self.names:
            raise ValueError(f"{name}: the plan has a stage of that name already: {', '.join(self.names)}")
        return name

    def _name_of(self, function: object) -> str:
        while isinstance(function, partial):
            function = function.func
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


def _check_pickles(stage: str, function: object) -> None:
    try:
        pickle.dumps(function, protocol=5)
    except Exception as error:  # what pickling a user's object raises can be anything
        raise ValueError(
            f"{stage}: a function for processes must pickle, and {function!r} does not ({error}): "
            "define it at the top level of a module, or give on='thread'"
        ) from error
