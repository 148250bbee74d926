"""What a plan means: its items and failure, made in one loop, one after the other, without any of the engine.

Every stage pulls from the one before it, so nothing is read ahead: what is dropped before a failure is the least that
can be.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, cast

from pipeline import Drop, Item, Plan, Retry, State
from pipeline.plan import Folding, Mapping, Reading

T = TypeVar("T")
Items: TypeAlias = Iterator[Item[object]]


@dataclass(frozen=True)
class Meaning:
    """Of one plan, from its beginning."""

    items: list[Item[object]]
    failure: tuple[str, str] | None
    """The stage and the reason."""
    dropped: dict[str, list[str]]
    """Each stage's reasons, in order."""


class _Failed(Exception):
    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(stage, reason)
        self.stage = stage
        self.reason = reason


def meaning(plan: Plan[object]) -> Meaning:
    """Of a plan whose functions await nothing but their turn."""
    made: list[Item[object]] = []
    dropped = _Records()
    items = _read(plan.reading, stateful=bool(plan.stateful))
    for stage in plan.stages:
        items = _folded(stage, items) if isinstance(stage, Folding) else _mapped(stage, items, dropped)
    try:
        made.extend(items)
    except _Failed as failed:
        return Meaning(made, (failed.stage, failed.reason), dropped.reasons)
    return Meaning(made, None, dropped.reasons)


@dataclass
class _Records:
    reasons: dict[str, list[str]] = field(default_factory=dict)

    def count(self, stage: str) -> int:
        return len(self.reasons.get(stage, []))

    def add(self, stage: str, reason: str) -> None:
        self.reasons.setdefault(stage, []).append(reason)


def _read(spec: Reading, *, stateful: bool) -> Items:
    at: State | None = None
    failures = 0
    while True:
        reading = aiter(spec.source.read(at))
        try:
            while True:
                value, at = _awaited(anext(reading))
                failures = 0
                yield Item(value, {"source": at, "stages": {}} if stateful else at)
        except StopAsyncIteration:
            return
        except Exception as error:
            failures += 1
            if not _again(spec.retry, error, failures):
                raise _Failed(spec.name, _reason(error)) from error


def _mapped(spec: Mapping, items: Items, dropped: _Records) -> Items:
    for value, resume in items:
        try:
            result = _called(spec.function, value, spec.retry)
        except Exception as error:
            if spec.on_error is None:
                raise _Failed(spec.name, _reason(error)) from error
            _drop(spec.name, spec.on_error, _reason(error), dropped)
        else:
            counted = resume if spec.on_error is None else _with(resume, spec.name, dropped.count(spec.name))
            yield Item(result, counted)


def _drop(stage: str, policy: Drop, reason: str, dropped: _Records) -> None:
    if dropped.count(stage) == policy.at_most:
        raise _Failed(
            stage,
            f"TooManyDropped: {policy.at_most + 1} items failed, and {policy.at_most} may be dropped; "
            f"the last one: {reason}",
        )
    dropped.add(stage, reason)


def _folded(spec: Folding, items: Items) -> Items:
    fold = copy.deepcopy(spec.fold)
    before: State = {"source": None, "stages": {}}

    def drained(emit: Callable[[], object | None]) -> Items:
        while (value := emit()) is not None:
            yield Item(value, _with(before, spec.name, fold.state()))

    try:
        for value, before in items:  # noqa: B007 - drained() reads it
            fold.accept(value)
            yield from drained(fold.emit)
        yield from drained(fold.finish)
    except _Failed:
        raise
    except Exception as error:
        raise _Failed(spec.name, _reason(error)) from error


def _called(function: Callable[[object], object], value: object, retry: Retry | None) -> object:
    attempts = 1
    while True:
        try:
            result = function(value)
            return _awaited(result) if isinstance(result, Awaitable) else result
        except Exception as error:
            if not _again(retry, error, attempts):
                raise
        attempts += 1


def _again(retry: Retry | None, error: Exception, attempts: int) -> bool:
    return retry is not None and isinstance(error, retry.on) and attempts < retry.attempts


def _awaited(awaitable: Awaitable[T]) -> T:
    steps = cast("Generator[object, None, T]", awaitable.__await__())
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)


def _with(resume: State, stage: str, state: object) -> State:
    return cast("State", {**resume, "stages": {**cast("dict[str, object]", resume["stages"]), stage: state}})


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
