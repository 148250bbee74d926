"""Whatever a plan is made of, it gives what one loop would; wherever it is cut, what would have come without.

Plans are generated: sources that pause, fail for a while or for good; maps on the loop, in threads and processes that
finish out of order, fail, are tried again or drop; folds that join, split, shuffle and fail, several in a row. Each is
run whole, and in parts that are resumed from a state that has been through JSON. Values, states, the failure at the end
and the records of dropped items have to be equal.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import Drop, Dropped, Item, Plan, Retry, StageFailed, State, start
from tests.pipeline.reference import meaning
from tests.pipeline.sources import (
    Batches,
    Broken,
    Flaky,
    Kept,
    Pieces,
    ShuffleBuffer,
    Step,
    Transient,
    mixed,
    within,
)

T = TypeVar("T")

HANGS_S = 60.0


@dataclass(frozen=True)
class Reads:
    """Numbers below `n`."""

    n: int
    pauses: bool
    ahead: int
    transient: tuple[tuple[int, int], ...]
    """At which items it fails for a while, and how often: five times is too often."""
    breaks_at: int | None

    def plan(self) -> Plan[int]:
        source = Breaking(self.n, dict(self.transient), self.breaks_at, pauses=self.pauses)
        return Plan(source, ahead=self.ahead, retry=RETRY)


@dataclass(frozen=True)
class Calls:
    """A map that mixes each value with `salt`."""

    salt: int
    place: Literal["loop", "def on loop", "thread", "process"]
    width: int
    ahead: int
    slow: bool
    transient: bool
    breaks_one_in: int | None
    """Which values it fails on."""
    drops_at_most: int | None
    """How many of them are left out; None: the first one fails the plan."""

    def added_to(self, plan: Plan[int], records: list[Dropped]) -> Plan[int]:
        width = 1 + self.width % 2 if self.place == "process" else self.width
        function = Step(self.salt, self.slow, self.transient, self.breaks_one_in)
        return plan.map(
            function.on_the_loop if self.place == "loop" else function,
            on="loop" if self.place == "def on loop" else self.place,
            name=f"map-{len(plan.names)}",
            width=width,
            ahead=max(width, self.ahead),
            retry=RETRY if self.transient and self.place != "def on loop" else None,
            on_error=None if self.drops_at_most is None else Drop(Kept(records), self.drops_at_most),
        )


@dataclass(frozen=True)
class Folds:
    """A fold of one kind."""

    kind: Literal["join", "split", "both", "shuffle"]
    size: int
    ahead: int
    breaks_one_in: int | None

    def added_to(self, plan: Plan[int], records: list[Dropped]) -> Plan[int]:
        name = f"{self.kind}-{len(plan.names)}"
        breaks = Breaks(self.breaks_one_in, self.size)
        if self.kind == "join":
            return plan.fold(BreakingBatches(self.size, breaks), name=name, ahead=self.ahead).map(
                mixed_list, on="loop", name=f"{name}-mixed"
            )
        if self.kind == "shuffle":
            return plan.fold(ShuffleBuffer(self.size, seed=self.size), name=name, ahead=self.ahead)
        pieces = Split(self.size, breaks)
        return plan.fold(
            Pieces(1 if self.kind == "split" else self.size, pieces), name=name, ahead=self.ahead
        )


@dataclass(frozen=True)
class Recipe:
    """How to make a plan; each start gets one of its own, since what fails for a while counts its failures."""

    reads: Reads
    stages: tuple[Calls | Folds, ...]
    hasty: bool
    """Threads lose their turn all the time."""
    budget_bytes: int

    @property
    def has_processes(self) -> bool:
        return any(isinstance(stage, Calls) and stage.place == "process" for stage in self.stages)

    def plan(self, records: list[Dropped]) -> Plan[int]:
        plan = self.reads.plan()
        for stage in self.stages:
            plan = stage.added_to(plan, records)
        return plan


RETRY = Retry(on=(Transient,), attempts=4, first_s=0.0)


class Breaking(Flaky):
    """A flaky source that breaks for good before the item `breaks_at`."""

    def __init__(self, n: int, times: dict[int, int], breaks_at: int | None, *, pauses: bool) -> None:
        super().__init__(n, times, pauses=pauses)
        self.breaks_at = breaks_at

    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        async for item in super().read(at):
            if item.value == self.breaks_at:
                raise Broken(f"item {item.value}")
            yield item


@dataclass(frozen=True)
class Breaks:
    """Whether a fold fails on a value."""

    one_in: int | None
    salt: int

    def __call__(self, value: int) -> None:
        if self.one_in is not None and mixed(self.salt, value) % self.one_in == 0:
            raise Broken(f"{value} cannot be folded")


@dataclass(frozen=True)
class Split:
    """Up to `most` pieces of a value."""

    most: int
    breaks: Breaks

    def __call__(self, value: int) -> list[int]:
        self.breaks(value)
        return [mixed(value, i) for i in range(mixed(value) % (self.most + 1))]


class BreakingBatches(Batches):
    """Fails as it emits: behind outputs of the same input, and when the input is over."""

    def __init__(self, size: int, breaks: Breaks) -> None:
        super().__init__(size)
        self.breaks = breaks

    def _give(self) -> list[int]:
        batch = super()._give()
        self.breaks(mixed(*batch))
        return batch


async def mixed_list(batch: list[int]) -> int:
    return mixed(*batch)


def several(each: st.SearchStrategy[T], counts: list[int]) -> st.SearchStrategy[tuple[T, ...]]:
    """As many as one of `counts` says: lists alone are most often empty."""
    return st.sampled_from(counts).flatmap(lambda n: st.lists(each, min_size=n, max_size=n)).map(tuple)


def reads() -> st.SearchStrategy[Reads]:
    items = st.integers(0, 40)
    return st.builds(
        Reads,
        n=st.sampled_from([0, 1, 2, 5, *range(10, 41)]),
        pauses=st.booleans(),
        ahead=st.integers(1, 8),
        transient=several(st.tuples(items, st.sampled_from([1, 2, 2, 3, 3, 5])), [0, 0, 1, 2, 3]),
        breaks_at=st.none() | st.none() | st.none() | items,
    )


def calls() -> st.SearchStrategy[Calls]:
    # Starting processes takes longer than all the rest: they have a small share.
    places = st.sampled_from([*["loop", "thread", "thread"] * 9, "def on loop", "process", "def on loop"])
    failures = [*[(None, None)] * 4, (8, None), (30, None), (3, 1), (3, 2), (8, 4), (3, 30), (3, 30), (8, 30)]

    def made(failure: tuple[int | None, int | None]) -> st.SearchStrategy[Calls]:
        return st.builds(
            Calls,
            salt=st.integers(0, 99),
            place=places,
            width=st.integers(1, 8),
            ahead=st.sampled_from([1, 2, 3, 8, 32]),
            slow=st.booleans(),
            transient=st.booleans(),
            breaks_one_in=st.just(failure[0]),
            drops_at_most=st.just(failure[1]),
        )

    return st.sampled_from(failures).flatmap(made)


def folds() -> st.SearchStrategy[Folds]:
    return st.builds(
        Folds,
        kind=st.sampled_from(["join", "split", "both", "shuffle"]),
        size=st.integers(1, 5),
        ahead=st.sampled_from([1, 2, 8]),
        breaks_one_in=st.none() | st.none() | st.sampled_from([10, 40]),
    )


def recipes() -> st.SearchStrategy[Recipe]:
    return st.builds(
        Recipe,
        reads=reads(),
        stages=several(calls() | folds(), [0, 1, 1, 2, 2, 3, 3, 4, 5]),
        hasty=st.booleans(),
        budget_bytes=st.sampled_from([1, 500, 1 << 30, 1 << 30]),
    )


Failure: TypeAlias = "tuple[str, str] | None"


@dataclass(frozen=True)
class Part:
    """What one start gave."""

    items: list[Item[int]]
    failure: Failure
    """The stage and the reason."""
    dropped: dict[str, list[str]]
    """Each stage's reasons, in order."""


def run(recipe: Recipe, at: State | None, most: int | None = None) -> Part:
    """Start, take at most so many items, leave."""
    records: list[Dropped] = []
    items: list[Item[int]] = []
    failure: Failure = None
    with start(recipe.plan(records), at=at, budget_bytes=recipe.budget_bytes) as running:
        try:
            while most is None or len(items) < most:
                items.append(next(running))
        except StopIteration:
            pass
        except StageFailed as failed:
            failure = failed.stage, failed.reason
    dropped: dict[str, list[str]] = {}
    for record in records:
        dropped.setdefault(record.failure.stage, []).append(record.failure.reason)
    return Part(items, failure, dropped)


def check(recipe: Recipe, first: int, second: int) -> None:
    """Whole, and in three parts; in two parts at every cut, where there are few."""
    whole = run(recipe, None)
    check_meaning(recipe, whole)
    count = len(whole.items)
    cut = first % (count + 1)
    check_parts(recipe, whole, [cut, second % (count - cut + 1)])
    if count <= 4 and not recipe.has_processes:
        for cut in range(count + 1):
            check_parts(recipe, whole, [cut])


def check_meaning(recipe: Recipe, whole: Part) -> None:
    """The same as in one loop, but for what is read ahead of a failure."""
    expected = meaning(recipe.plan([]))
    assert whole.items == expected.items
    assert whole.failure == expected.failure
    if whole.failure is None:
        assert whole.dropped == expected.dropped
    for stage, reasons in expected.dropped.items():
        assert whole.dropped[stage][: len(reasons)] == reasons


def check_parts(recipe: Recipe, whole: Part, lengths: list[int]) -> None:
    """Take so many items, so many more from there, and then the rest."""
    at, done = None, 0
    for length in lengths:
        part = run(recipe, at, length)
        assert part.items == whole.items[done : done + length]
        if part.items:
            at = json.loads(json.dumps(part.items[-1].resume))
        done += length
    rest = run(recipe, at)
    assert rest.items == whole.items[done:]
    assert rest.failure == whole.failure
    for stage in whole.dropped | rest.dropped:
        expected = whole.dropped.get(stage, [])[dropped_before(at, stage) :]
        found = rest.dropped.get(stage, [])
        if whole.failure is None:
            assert found == expected
        # Before a failure behind it, a stage may have dropped more or less of what comes after the last item.
        surely = (
            max(0, dropped_before(whole.items[-1].resume, stage) - dropped_before(at, stage))
            if whole.items
            else 0
        )
        both = min(len(found), len(expected))
        assert both >= surely
        assert found[:both] == expected[:both]


def dropped_before(at: State | None, stage: str) -> int:
    """How many items the stage had dropped at this state."""
    stages = {} if at is None else at.get("stages", {})
    assert isinstance(stages, dict)
    count = stages.get(stage, 0)
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize(
    "cases",
    [150, pytest.param(2_000, marks=pytest.mark.slow), pytest.param(50_000, marks=pytest.mark.long)],
)
def test_resumed_output_equals_uninterrupted_output(cases: int) -> None:
    """A case that fails is printed, with a line that runs it again."""

    @settings(max_examples=cases, deadline=None, print_blob=True, suppress_health_check=[*HealthCheck])
    @given(recipe=recipes(), first=st.integers(0, 200), second=st.integers(0, 200))
    def each(recipe: Recipe, first: int, second: int) -> None:
        before = sys.getswitchinterval()
        if recipe.hasty:
            sys.setswitchinterval(1e-6)
        try:
            with within(HANGS_S):
                check(recipe, first, second)
        finally:
            sys.setswitchinterval(before)

    each()


def test_the_recipes_are_rich() -> None:
    """They fail, drop, drop too many and try again, at starts and in the middle: else the oracle would prove little."""
    seen: Counter[str] = Counter()

    @settings(
        max_examples=200, deadline=None, database=None, derandomize=True, suppress_health_check=[*HealthCheck]
    )
    @given(recipe=recipes())
    def each(recipe: Recipe) -> None:
        if recipe.has_processes:
            return
        part = run(recipe, None)
        seen["items"] += len(part.items) > 5
        seen["dropped"] += bool(part.dropped)
        if part.items and isinstance(states := part.items[-1].resume.get("stages"), dict):
            seen["several_states"] += len(states) > 1
        if part.failure is not None:
            seen[part.failure[1].partition(":")[0]] += 1
            seen["failed_behind_items"] += bool(part.items)

    each()
    kinds = "items dropped several_states Broken Transient TooManyDropped failed_behind_items"
    assert all(seen[kind] >= 3 for kind in kinds.split()), seen
