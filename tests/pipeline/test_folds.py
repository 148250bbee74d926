"""Folds: when each method is called, what a state is, how a fold fails, and what is held while it works."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from itertools import chain
from typing import Literal, cast

import pytest

from pipeline import Drop, Fold, Item, Plan, StageFailed, State, StateMismatch, start
from tests.contracts.engine import FoldContract, ListSource
from tests.pipeline.sources import (
    Batches,
    Count,
    Kept,
    Pieces,
    ShuffleBuffer,
    Shuffled,
    Steps,
    double,
    mixed,
    triple,
    within,
)


class TestJoining(FoldContract):
    carry_bytes = 3 * len("11, ")

    def make_fold(self) -> Fold[object, object]:
        return cast("Fold[object, object]", Batches(3))

    def values(self) -> list[object]:
        return [*range(11)]


class TestSplitting(FoldContract):
    """Every state but the last is of the middle of an input's outputs."""

    carry_bytes = 9 * len("1234567890, ")

    def make_fold(self) -> Fold[object, object]:
        return cast("Fold[object, object]", Pieces(1, lambda x: [mixed(x, i) for i in range(10)]))

    def values(self) -> list[object]:
        return [*range(3)]


class TestJoiningAndSplitting(FoldContract):
    carry_bytes = 7 * len("1234567890, ")

    def make_fold(self) -> Fold[object, object]:
        return cast("Fold[object, object]", Pieces(4, lambda x: [mixed(x, i) for i in range(mixed(x) % 8)]))

    def values(self) -> list[object]:
        return [*range(20)]


class TestShuffling(FoldContract):
    """All of its last outputs come when the input is over."""

    carry_bytes = 6 * len("20, ")

    def make_fold(self) -> Fold[object, object]:
        return cast("Fold[object, object]", ShuffleBuffer(5, seed=42))

    def values(self) -> list[object]:
        return [*range(20)]


@pytest.mark.parametrize("order", ["permutation", "buffer"])
def test_resume_twice(order: str) -> None:
    """12 rows, shuffled with seed 42: stopped at every k and again at every later row, the parts join to the whole."""
    rows = (
        Plan(Shuffled(12, seed=42))
        if order == "permutation"
        else Plan(Count(12)).fold(ShuffleBuffer(5, seed=42))
    )
    plan = rows.map(triple, width=2)

    def read(at: State | None, most: int) -> tuple[list[int], State | None]:
        values: list[int] = []
        with start(plan, at=at) as running:
            while len(values) < most and (item := next(running, None)) is not None:
                values.append(item.value)
                at = item.resume
        return values, json.loads(json.dumps(at))

    whole, _ = read(None, 99)
    assert sorted(whole) == [3 * row for row in range(12)]
    assert whole != sorted(whole)
    for k in range(13):
        first, at = read(None, k)
        for later in range(k, 13):
            second, then = read(at, later - k)
            third, _ = read(then, 99)
            assert first + second + third == whole, f"stopped after {k} and {later}"


@pytest.mark.parametrize("place", ["thread", "process"])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_width_is_invisible(place: Literal["thread", "process"], width: int) -> None:
    """34 records in batches of 16: always 16, 16 and 2, with the same ids."""
    plan = Plan(Count(34)).map(triple, width=width, on=place).fold(Batches(16))
    with start(plan) as running:
        batches = [item.value for item in running]
    assert [len(batch) for batch in batches] == [16, 16, 2]
    assert [*chain(*batches)] == [3 * i for i in range(34)]


class Recording:
    """Splits each number into so many of itself; writes down what is called. `fails_in` raises, at number `at`."""

    def __init__(self, calls: list[str], fails_in: str = "", at: int = 0) -> None:
        self.calls = calls
        self.fails_in = fails_in
        self.at = at
        self.left = 0
        self.value = 0

    def __deepcopy__(self, memo: object) -> Recording:
        return Recording(self.calls, self.fails_in, self.at)  # the list is the test's

    def accept(self, value: int, /) -> None:
        self.left = self.value = value
        self._called("accept")

    def emit(self) -> int | None:
        self._called("emit")
        if self.left == 0:
            return None
        self.left -= 1
        return self.value

    def finish(self) -> int | None:
        self.value = -1
        self._called("finish")
        return None

    def state(self) -> State:
        self._called("state")
        return {"value": self.value, "left": self.left}

    def restore(self, state: State) -> None:
        self.value, self.left = cast("int", state["value"]), cast("int", state["left"])
        self._called("restore")

    def _called(self, what: str) -> None:
        self.calls.append(f"{what} {self.value}" if what == "accept" else what)
        if self.fails_in == what and self.value == self.at:
            raise ValueError(f"in {what}")


def test_emit_is_drained_before_the_next_accept() -> None:
    calls: list[str] = []
    with start(Plan(ListSource([2, 0, 1])).fold(Recording(calls))) as running:
        items = list(running)
    assert [item.value for item in items] == [2, 2, 1]
    assert " ".join(calls) == (
        "accept 2 emit state emit state emit accept 0 emit accept 1 emit state emit finish"
    )
    calls.clear()
    with start(Plan(ListSource([2, 0, 1])).fold(Recording(calls)), at=items[0].resume) as running:
        assert list(running) == items[1:]
    assert " ".join(calls) == "restore emit state emit accept 0 emit accept 1 emit state emit finish"


def test_an_empty_input_is_finished() -> None:
    calls: list[str] = []
    with start(Plan(Count(0)).fold(Recording(calls))) as running:
        assert list(running) == []
    assert calls == ["finish"]


def test_after_a_failure_nothing_is_finished() -> None:
    """What is left is not over: it would come out once more after a resume."""
    calls: list[str] = []
    plan = Plan(ListSource([1, 0])).map(lambda x: 1 // x, name="divide").fold(Recording(calls))
    with start(plan) as running:
        assert next(running).value == 1
        with pytest.raises(StageFailed, match="stage 'divide' failed at item 1"):
            next(running)
    assert "finish" not in calls


class Row(int):
    provenance = "rows.txt:7"


@pytest.mark.parametrize(
    ("method", "index", "provenance", "before"),
    [
        ("accept", 2, "rows.txt:7", [2, 2]),
        ("emit", 2, "rows.txt:7", [2, 2]),
        ("state", 2, "rows.txt:7", [2, 2]),
        ("finish", 5, None, [2, 2, 3, 3, 3]),
    ],
)
def test_a_failure_names_the_input(
    method: str, index: int, provenance: str | None, before: list[int]
) -> None:
    at = -1 if method == "finish" else 3
    plan = Plan(ListSource([2, 0, Row(3)])).fold(Recording([], method, at), name="split")
    with start(plan) as running:
        assert [next(running).value for _ in before] == before
        with pytest.raises(StageFailed) as error:
            next(running)
    failure = error.value
    assert (failure.stage, failure.index, failure.provenance) == ("split", index, provenance)
    assert failure.reason == f"ValueError: in {method}"
    assert isinstance(failure.__cause__, ValueError)


def test_a_state_that_is_not_restored_is_a_failure() -> None:
    plan = Plan(ListSource([2])).fold(Recording([], "restore", 2), name="split")
    at: State = {"source": {"next": 1}, "stages": {"split": {"value": 2, "left": 1}}}
    with (
        start(plan, at=at) as running,
        pytest.raises(StageFailed, match=r"stage 'split' failed at item 0: .*in restore"),
    ):
        next(running)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, StopIteration, asyncio.CancelledError])
def test_no_exception_is_mistaken_for_an_end(kind: type[BaseException]) -> None:
    class Raising(Batches):
        def emit(self) -> list[int] | None:
            raise kind

    with start(Plan(Count(9)).fold(Raising(2))) as running, pytest.raises(StageFailed) as error:
        next(running)
    assert isinstance(error.value.__cause__, kind)


def test_one_plan_runs_twice_at_the_same_time() -> None:
    """Each start folds with a copy of its own, and leaves the plan's as it was."""
    fold = ShuffleBuffer(3, seed=1)
    plan = Plan(Count(30)).fold(fold).fold(Batches(4))
    with start(plan) as one, start(plan) as other:
        both = [(a, b) for a, b in zip(one, other, strict=True)]
    assert all(a == b for a, b in both)
    assert (fold.held, fold.given) == ([], 0)
    with start(plan) as running:
        assert list(running) == [a for a, _ in both]


def folds(plan: Plan[int]) -> Plan[list[int]]:
    return plan.fold(Batches(4), name="batches")


STATES: dict[str, State] = {
    "maps alone": {"next": 3},
    "one fold": {"source": {"next": 4}, "stages": {"batches": {"carry": []}}},
    "another fold": {"source": {"next": 4}, "stages": {"shuffle": {"held": [], "given": 0}}},
    "two folds": {
        "source": {"next": 4},
        "stages": {"batches": {"carry": []}, "shuffle": {"held": [], "given": 0}},
    },
    "no fold": {"source": {"next": 4}, "stages": {}},
    "nothing": {},
    "no source": {"stages": {"batches": {"carry": []}}},
    "more": {"source": {"next": 4}, "stages": {"batches": {"carry": []}}, "version": 2},
    "stages of another shape": {"source": {"next": 4}, "stages": ["batches"]},
    "a source of another shape": {"source": 4, "stages": {"batches": {"carry": []}}},
}


@pytest.mark.parametrize("kind", [kind for kind in STATES if kind != "one fold"])
def test_a_foreign_state_is_refused(kind: str) -> None:
    """Before anything runs, as the user's mistake."""
    before = threading.active_count()
    with pytest.raises(StateMismatch, match="batches") as error:
        start(folds(Plan(Count(9))), at=STATES[kind])
    assert error.value.exit_code == 2
    assert threading.active_count() == before


def test_its_own_state_is_not() -> None:
    with start(folds(Plan(Count(9))), at=STATES["one fold"]) as running:
        assert [item.value for item in running] == [[4, 5, 6, 7], [8]]


def test_a_state_of_folds_does_not_start_a_plan_without() -> None:
    """The source gets what is not its own, and fails by its own account."""
    with (
        start(Plan(Count(9)), at=STATES["one fold"]) as running,
        pytest.raises(StageFailed, match="KeyError: 'next'"),
    ):
        next(running)


@pytest.mark.parametrize(("source_ahead", "fold_ahead"), [(1, 1), (8, 1), (2, 3), (3, 4)])
def test_reads_ahead_are_bounded_exactly(source_ahead: int, fold_ahead: int) -> None:
    """Behind a fold that makes three of each input: what its outputs are made of, and the source's window."""
    source = Steps(100)
    plan = Plan(source, ahead=source_ahead).fold(Pieces(1, lambda x: [x] * 3), ahead=fold_ahead)
    with start(plan) as running:
        for used in range(31):
            most = -(-(used + fold_ahead) // 3) + source_ahead
            # Wider windows are filled again only when they are half empty.
            if used == 0 or fold_ahead == 1:
                source.wait_until_read(most)
            assert source.read_count <= most
            next(running)


class Buffer:
    """Something that can be seen to die."""


class Made:
    """For each input so many outputs of `make`, which is told how many are to come."""

    def __init__(self, count: int, make: Callable[[int], Buffer]) -> None:
        self.count = count
        self.make = make
        self.left = 0

    def accept(self, value: object, /) -> None:
        self.left = self.count

    def emit(self) -> Buffer | None:
        if self.left == 0:
            return None
        self.left -= 1
        return self.make(self.left)

    def finish(self) -> Buffer | None:
        return None

    def state(self) -> State:
        return {"left": self.left}

    def restore(self, state: State) -> None:
        self.left = cast("int", state["left"])


def test_outputs_of_one_input_wait_for_room_too() -> None:
    made = taken = worst = 0
    full = threading.Event()

    def make(_: int) -> Buffer:
        nonlocal made, worst
        made += 1
        worst = max(worst, made - taken)
        if made == 5:
            full.set()
        return Buffer()

    with start(Plan(Count(2)).fold(Made(100, make), ahead=4)) as running:
        assert full.wait(10)
        while True:
            taken += 1  # before next(): what it takes makes room at once
            if next(running, None) is None:
                break
    assert made == 200
    assert worst == 5  # four in the window, and one that waits for room


def test_inputs_and_outputs_die_with_their_last_user() -> None:
    class Waiting(Count):
        async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
            async for item in super().read(at):
                yield item
            await asyncio.get_running_loop().create_future()

    died = threading.Semaphore(0)

    def tracked(_: int) -> Buffer:
        buffer = Buffer()
        weakref.finalize(buffer, died.release)
        return buffer

    plan = Plan(Waiting(3)).map(tracked).fold(Made(1, tracked))
    with start(plan) as running:
        for _ in range(3):
            next(running)
        for _ in range(6):
            assert died.acquire(timeout=5)


def test_an_output_may_die_before_the_next_one_is_there() -> None:
    first_died = threading.Event()

    def make(left: int) -> Buffer:
        buffer = Buffer()
        if left:
            weakref.finalize(buffer, first_died.set)
        else:
            assert first_died.wait(timeout=5)
        return buffer

    with start(Plan(Count(1)).fold(Made(2, make))) as running:
        assert [next(running).resume["stages"] for _ in range(2)] == [
            {"Made": {"left": 1}},
            {"Made": {"left": 0}},
        ]


class Total:
    """One output when the input is over: the sum."""

    def __init__(self) -> None:
        self.sum: int | None = 0

    def accept(self, value: int, /) -> None:
        assert self.sum is not None
        self.sum += value

    def emit(self) -> int | None:
        return None

    def finish(self) -> int | None:
        total, self.sum = self.sum, None
        return total

    def state(self) -> State:
        return {"sum": self.sum}

    def restore(self, state: State) -> None:
        self.sum = cast("int | None", state["sum"])


@pytest.mark.parametrize(
    ("n", "total", "source"), [(0, 0, None), (5, 10, {"next": 5})], ids=["nothing read", "all read"]
)
def test_an_output_of_the_end_resumes_at_the_end(n: int, total: int, source: State | None) -> None:
    plan = Plan(Count(n)).fold(Total(), name="total")
    with start(plan) as running:
        items = list(running)
    resume: State = {"source": source, "stages": {"total": {"sum": None}}}
    assert items == [Item(total, resume)]
    with start(plan, at=resume) as running:
        assert list(running) == []


def test_many_stateful_stages_in_a_row() -> None:
    def odd(x: int) -> int:
        if x % 7 == 0:
            raise ValueError
        return x

    plan = (
        Plan(Shuffled(40, seed=3))
        .map(odd, on_error=Drop(Kept(), at_most=40))
        .fold(ShuffleBuffer(4, seed=1), name="first")
        .fold(Pieces(2, lambda x: [x, x + 1, x + 2]), name="pieces")
        .fold(ShuffleBuffer(2, seed=2), name="second")
        .map(double, width=3)
        .fold(Batches(3), name="batches")
    )
    with start(plan) as running:
        whole = list(running)
    assert [*cast("dict[str, object]", whole[-1].resume["stages"])] == [*plan.stateful]
    for k in range(len(whole)):
        with start(plan, at=json.loads(json.dumps(whole[k].resume))) as running:
            assert list(running) == whole[k + 1 :], f"resumed after item {k}"


def test_a_slow_consumer_and_a_fold_that_gives_nothing_for_long(hasty_switches: None) -> None:
    """Wake-ups in both directions, with windows of one."""
    plan = Plan(Count(400), ahead=1).fold(Batches(100), ahead=1)
    with within(30), start(plan) as running:
        assert [len(item.value) for item in running] == [100] * 4
