"""An exception reaches the consumer in its place, with its name, its place of origin and its cause."""

from __future__ import annotations

import asyncio
import copy
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from pipeline import Item, PipelineError, Plan, StageFailed, State, start
from pipeline.intake import Intake
from tests.contracts.engine import ListSource
from tests.pipeline.sources import Count, TwoArguments, double, triple


def break_at(k: int, error: BaseException):
    def breaking(x: int) -> int:
        if x >= k:
            raise error
        return x

    return breaking


def break_on_loop_at(k: int, error: BaseException):
    async def breaking(x: int) -> int:
        for _ in range(x % 3):
            await asyncio.sleep(0)
        if x >= k:
            raise error
        return x

    return breaking


class Breaking(Count):
    def __init__(self, k: int, error: BaseException) -> None:
        super().__init__(k)
        self.error = error

    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        async for item in super().read(at):
            yield item
        raise self.error


def make_plan(kind: str, k: int, width: int, error: BaseException) -> Plan[int]:
    if kind == "source":
        return Plan(Breaking(k, error), name="breaking").map(lambda x: x, width=width)
    breaking = (break_on_loop_at if kind == "loop" else break_at)(k, error)
    return Plan(Count(100, pauses=True)).map(double).map(lambda x: x // 2).map(breaking, width=width)


def run_out(plan: Plan[int]) -> tuple[list[int], StageFailed]:
    values = []
    with start(plan) as running:
        try:
            for item in running:
                values.append(item.value)
        except StageFailed as failure:
            return values, failure
    raise AssertionError(f"no failure after {values}")


@pytest.mark.parametrize("kind", ["source", "loop", "thread"])
@pytest.mark.parametrize("k", [0, 1, 7, 40])
@pytest.mark.parametrize("width", [1, 4])
def test_items_before_the_failure_are_delivered_first(kind: str, k: int, width: int) -> None:
    error = TwoArguments("corpus.jsonl", 17)
    values, failure = run_out(make_plan(kind, k, width, error))
    assert values == list(range(k))
    assert (failure.stage, failure.index, failure.provenance) == ("breaking", k, "corpus.jsonl:17")
    assert failure.exit_code == 2
    assert failure.__cause__ is error
    assert str(failure) == (
        f"stage 'breaking' failed at item {k} (corpus.jsonl:17): "
        "TwoArguments: corpus.jsonl is broken in row 17"
    )
    assert "raise error" in "".join(traceback.format_exception(error)) or kind == "source"


@pytest.mark.parametrize("kind", ["source", "loop", "thread"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(),
        StopAsyncIteration(),
        asyncio.CancelledError(),
        MemoryError(),
        ExceptionGroup("two", [ValueError(), KeyError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_exception_is_mistaken_for_an_end(kind: str, error: BaseException) -> None:
    values, failure = run_out(make_plan(kind, 5, 2, error))
    assert values == list(range(5))
    assert failure.exit_code == 1
    cause = failure.__cause__
    assert cause is error or (isinstance(cause, RuntimeError) and cause.__cause__ is error)  # PEP 479


@pytest.mark.parametrize("round_", range(100))
def test_calls_taken_before_a_failure_are_not_dropped(round_: int, hasty_switches: None) -> None:
    """Each later call fails as well: whichever fails first, the consumer sees the first in order."""
    values, failure = run_out(Plan(Count(100)).map(break_at(9, ValueError()), width=4))
    assert (values, failure.index) == (list(range(9)), 9)


@dataclass(frozen=True)
class Row:
    number: int
    provenance: str


def test_provenance_of_the_value_is_named() -> None:
    plan = (
        Plan(Count(9))
        .map(lambda x: Row(x, f"corpus.jsonl:{x + 1}"), name="parse")
        .map(lambda row: 6 // (5 - row.number), name="divide")
    )
    _, failure = run_out(plan)
    assert str(failure) == (
        "stage 'divide' failed at item 5 (corpus.jsonl:6): "
        "ZeroDivisionError: integer division or modulo by zero"
    )


def test_source_that_cannot_be_opened() -> None:
    class Missing:
        def read(self, at: State | None) -> AsyncIterator[Item[int]]:
            raise FileNotFoundError(2, "No such file or directory", "corpus.jsonl")

    values, failure = run_out(Plan(Missing()).map(triple))
    assert (values, failure.stage, failure.index) == ([], "source", 0)
    assert isinstance(failure.__cause__, FileNotFoundError)


def test_what_is_no_source_fails_clearly() -> None:
    class Synchronous:
        def read(self, at: State | None) -> list[Item[int]]:
            return []

    _, failure = run_out(Plan(Synchronous()))
    assert "TypeError" in failure.reason
    assert "__aiter__" in failure.reason


def test_source_of_bare_values_fails_clearly() -> None:
    class Bare:
        async def read(self, at: State | None) -> AsyncIterator[int]:
            yield 5

    _, failure = run_out(Plan(Bare()).map(triple).map(double))
    assert failure.reason == "TypeError: a source must yield Items, got int"


@pytest.mark.parametrize("kind", ["source", "loop", "thread"])
def test_an_exception_that_cannot_tell_what_it_is(kind: str) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

        @property
        def provenance(self) -> str:
            raise ValueError

        @property
        def exit_code(self) -> int:
            raise ValueError

    _, failure = run_out(make_plan(kind, 3, 2, Mute()))
    assert failure.reason == "Mute: <its message raised ValueError>"
    assert failure.index == 3


async def cancel_own_task(x: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return x


class CancellingOwnTask(Count):
    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        await cancel_own_task(0)
        yield Item(0, {})


@pytest.mark.parametrize(
    "plan", [Plan(CancellingOwnTask(1)), Plan(Count(9)).map(cancel_own_task, width=3)], ids=["source", "map"]
)
def test_a_stage_that_cancels_its_own_task_is_no_hang(plan: Plan[int]) -> None:
    stage = plan.names[-1]
    with pytest.raises(PipelineError, match=f"stage '{stage}' cancelled the task"), start(plan) as running:
        next(running)


def test_coroutine_in_a_thread_is_an_error() -> None:
    def hidden(x: int) -> object:
        return double(x)

    _, failure = run_out(Plan(Count(9)).map(hidden))
    assert "give on='loop'" in failure.reason


def test_failure_is_raised_again() -> None:
    with start(Plan(Count(9)).map(break_at(0, ValueError()))) as running:
        for _ in range(3):
            with pytest.raises(StageFailed):
                next(running)


def test_end_stays_the_end() -> None:
    with start(Plan(Count(1))) as running:
        assert len(list(running)) == 1
        assert list(running) == []


def test_failure_can_be_copied() -> None:
    failure = StageFailed("tokenise", 3, "ValueError: no", "a.txt:1", 2)
    again = copy.copy(failure)
    assert (str(again), again.exit_code) == (str(failure), 2)
    assert issubclass(StageFailed, PipelineError)


class ClosesBadly(Count):
    async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
        try:
            async for item in super().read(at):
                yield item
        finally:
            if self.read_count < self.n:
                raise OSError(5, "Input/output error", "corpus.jsonl")


def test_failure_to_close_a_source_is_raised() -> None:
    with (
        pytest.raises(StageFailed, match=r"stage 'source' failed .*Input/output error"),
        start(Plan(ClosesBadly(1000))) as running,
    ):
        next(running)


def test_failure_to_close_does_not_hide_what_went_wrong_before() -> None:
    with pytest.raises(ZeroDivisionError) as error, start(Plan(ClosesBadly(1000))) as running:
        print(1 // next(running).value)
    assert "Input/output error" in error.value.__notes__[0]


@pytest.mark.parametrize("kind", ["source", "loop", "thread"])
def test_a_value_that_cannot_be_weighed_passes(kind: str) -> None:
    class Heavy:
        @property
        def nbytes(self) -> int:
            raise OSError("no such weight")

    def make(_: object) -> Heavy:
        return Heavy()

    source = ListSource([Heavy()] * 5 if kind == "source" else [*range(5)])
    plan = (
        Plan(source)
        if kind == "source"
        else Plan(source).map(make, on="loop" if kind == "loop" else "thread")
    )
    with start(plan) as running:
        assert sum(isinstance(item.value, Heavy) for item in running) == 5


def test_a_fault_in_a_worker_ends_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("in the engine")

    monkeypatch.setattr(Intake, "took", broken)
    with pytest.raises(PipelineError, match="a fault of the engine itself: ZeroDivisionError"):
        run_out(Plan(Count(500)).map(triple))
