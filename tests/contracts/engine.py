"""What every source, map, fold and sink must do: subclass, say how to make one, and inherit the tests."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from threading import Thread
from typing import Generic, NamedTuple, TypeVar, cast

import pytest

from pipeline import JSON, Fold, Item, Map, Plan, Sink, Source, State, start

T = TypeVar("T")


async def read_all(source: Source[object], at: State | None = None) -> list[Item[object]]:
    return [item async for item in source.read(at)]


class SourceContract:
    """A short source (2 to 50 items), made afresh by `make_source`."""

    def make_source(self) -> Source[object]:
        raise NotImplementedError

    def plain(self, value: object) -> object:
        """`value` as something that compares with ==; override where it does not (arrays)."""
        return value

    def _plain(self, items: list[Item[object]]) -> list[tuple[object, State]]:
        return [(self.plain(item.value), item.resume) for item in items]

    def test_two_readings_are_equal(self) -> None:
        first = asyncio.run(read_all(self.make_source()))
        assert 2 <= len(first) <= 50
        assert self._plain(asyncio.run(read_all(self.make_source()))) == self._plain(first)

    def test_one_source_can_be_read_twice(self) -> None:
        source = self.make_source()
        assert self._plain(asyncio.run(read_all(source))) == self._plain(asyncio.run(read_all(source)))

    def test_resumes_at_every_item(self) -> None:
        whole = asyncio.run(read_all(self.make_source()))
        for k, item in enumerate(whole):
            rest = asyncio.run(read_all(self.make_source(), item.resume))
            assert self._plain(rest) == self._plain(whole[k + 1 :]), f"resumed after item {k}"

    def test_state_survives_json(self) -> None:
        for item in asyncio.run(read_all(self.make_source())):
            assert cast("JSON", json.loads(json.dumps(item.resume))) == item.resume

    def test_reading_leaves_the_state_as_it_was(self) -> None:
        item = asyncio.run(read_all(self.make_source()))[0]
        before = json.dumps(item.resume)
        asyncio.run(read_all(self.make_source(), item.resume))
        assert json.dumps(item.resume) == before

    def test_can_be_left_after_one_item(self) -> None:
        async def one() -> Item[object]:
            items = self.make_source().read(None)
            if not hasattr(items, "aclose"):
                return await anext(items)
            async with aclosing(items):
                return await anext(items)

        whole = asyncio.run(read_all(self.make_source()))
        assert self._plain([asyncio.run(one())]) == self._plain(whole[:1])

    def test_runs_in_the_engine(self) -> None:
        whole = asyncio.run(read_all(self.make_source()))
        with start(Plan(self.make_source(), ahead=2)) as running:
            assert self._plain(list(running)) == self._plain(whole)


class MapContract:
    """A map, made afresh by `make_map`, and a few values for it."""

    def make_map(self) -> Map[object, object]:
        raise NotImplementedError

    def values(self) -> list[object]:
        """Two or more inputs."""
        raise NotImplementedError

    def plain(self, value: object) -> object:
        """`value` as something that compares with ==."""
        return value

    def _called(self) -> list[object]:
        async def call(value: object) -> object:
            result = self.make_map()(value)
            return await result if isinstance(result, Awaitable) else result

        return [self.plain(asyncio.run(call(value))) for value in self.values()]

    def test_is_stateless(self) -> None:
        function = self.make_map()

        async def call(value: object) -> object:
            result = function(value)
            return await result if isinstance(result, Awaitable) else result

        backwards = [self.plain(asyncio.run(call(value))) for value in reversed(self.values())]
        assert backwards[::-1] == self._called()

    @pytest.mark.parametrize("width", [1, 2, 4])
    def test_is_the_same_at_every_width(self, width: int) -> None:
        with start(Plan(ListSource(self.values() * 3)).map(self.make_map(), width=width)) as running:
            assert [self.plain(item.value) for item in running] == self._called() * 3


class FoldContract:
    """A fold, made afresh by `make_fold`, and values that make it give two outputs or more."""

    carry_bytes = 0
    """How long, as JSON, the part of a state may be that is held over from the inputs; 1 KiB goes on top."""

    def make_fold(self) -> Fold[object, object]:
        raise NotImplementedError

    def values(self) -> list[object]:
        """Inputs."""
        raise NotImplementedError

    def plain(self, value: object) -> object:
        """`value` as something that compares with ==."""
        return value

    def _outputs(self, fold: Fold[object, object], values: list[object]) -> list[_Output]:
        return list(self._folded(fold, values))

    def _folded(self, fold: Fold[object, object], values: list[object]) -> Iterator[_Output]:
        """As the engine does it; the number of inputs counts from the beginning of `values`."""
        yield from self._drained(fold, fold.emit, 0)
        for number, value in enumerate(values, 1):
            fold.accept(value)
            yield from self._drained(fold, fold.emit, number)
        yield from self._drained(fold, fold.finish, len(values))

    def _drained(
        self, fold: Fold[object, object], emit: Callable[[], object | None], accepted: int
    ) -> Iterator[_Output]:
        while (value := emit()) is not None:
            yield _Output(self.plain(value), fold.state(), accepted)

    def _whole(self) -> list[_Output]:
        whole = self._outputs(self.make_fold(), self.values())
        assert len(whole) >= 2
        return whole

    def test_two_folds_give_the_same(self) -> None:
        assert self._outputs(self.make_fold(), self.values()) == self._whole()

    def test_a_copy_is_independent(self) -> None:
        """Each start works on a copy; one that has run leaves the prototype as it was."""
        prototype = self.make_fold()
        first, second = copy.deepcopy(prototype), copy.deepcopy(prototype)
        whole = self._whole()
        both = list(zip(self._folded(first, self.values()), self._folded(second, self.values()), strict=True))
        assert both == [(output, output) for output in whole]
        assert self._outputs(prototype, self.values()) == whole

    def test_resumes_at_every_output(self) -> None:
        whole = self._whole()
        for k, output in enumerate(whole):
            fold = self.make_fold()
            fold.restore(json.loads(json.dumps(output.state)))
            rest = self._outputs(fold, self.values()[output.accepted :])
            assert [(each.value, each.state) for each in rest] == [
                (each.value, each.state) for each in whole[k + 1 :]
            ], f"resumed after output {k}"

    def test_state_survives_json(self) -> None:
        for output in self._whole():
            assert cast("JSON", json.loads(json.dumps(output.state))) == output.state

    def test_a_state_does_not_change_with_later_calls(self) -> None:
        outputs = self._folded(self.make_fold(), self.values())
        states = [(output.state, json.dumps(output.state)) for output in outputs]
        assert all(json.dumps(state) == before for state, before in states)

    def test_restoring_leaves_the_state_as_it_was(self) -> None:
        output = self._whole()[0]
        before = json.dumps(output.state)
        fold = self.make_fold()
        fold.restore(output.state)
        self._outputs(fold, self.values()[output.accepted :])
        assert json.dumps(output.state) == before

    def test_states_are_small(self) -> None:
        assert max(len(json.dumps(output.state)) for output in self._whole()) <= 1024 + self.carry_bytes

    def test_when_all_is_given_nothing_more_comes(self) -> None:
        fold = self.make_fold()
        self._outputs(fold, self.values())
        assert fold.finish() is None

    @pytest.mark.parametrize("ahead", [1, 8])
    def test_runs_in_the_engine(self, ahead: int) -> None:
        plan = Plan(ListSource(self.values())).fold(self.make_fold(), name="fold", ahead=ahead)
        whole = self._whole()
        states = [{"source": _next(output.accepted), "stages": {"fold": output.state}} for output in whole]
        with start(plan) as running:
            found = [(self.plain(item.value), item.resume) for item in running]
        assert found == [(output.value, state) for output, state in zip(whole, states, strict=True)]
        for k, state in enumerate(states):
            with start(plan, at=cast("State", json.loads(json.dumps(state)))) as running:
                assert [(self.plain(item.value), item.resume) for item in running] == found[k + 1 :]


class _Output(NamedTuple):
    value: object
    state: State
    accepted: int
    """Inputs that the fold had accepted by then."""


def _next(index: int) -> State | None:
    return {"next": index} if index else None


class SinkContract:
    """A sink, made afresh by `make_sink`, and what it has been given, read back."""

    def make_sink(self, folder: Path) -> Sink[object]:
        raise NotImplementedError

    def values(self) -> list[object]:
        """Three values or more, each other than the last."""
        raise NotImplementedError

    def read_back(self, sink: Sink[object], folder: Path) -> list[object]:
        """What the sink holds, in order, as something that compares with ==."""
        raise NotImplementedError

    def as_read_back(self, value: object) -> object:
        """What is read back of `value`."""
        return value

    def _expected(self) -> list[object]:
        return [self.as_read_back(value) for value in self.values()]

    def test_holds_what_was_put_in_order(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        for number, value in enumerate(self.values(), 1):
            sink.put(value)
            assert self.read_back(sink, tmp_path) == self._expected()[:number]

    def test_may_be_put_to_from_another_thread_each_time(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        for value in self.values():
            thread = Thread(target=sink.put, args=(value,))
            thread.start()
            thread.join()
        assert self.read_back(sink, tmp_path) == self._expected()

    def test_ends_a_plan(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        values = self.values()
        with start(Plan(ListSource(values))) as running:
            assert running.drain(sink) == {"next": len(values)}
        assert self.read_back(sink, tmp_path) == self._expected()


class ListSource(Generic[T]):
    """A source over a list: the simplest there is, and the double for tests of whatever takes a source."""

    def __init__(self, values: list[T]) -> None:
        self._values = values

    def read(self, at: State | None) -> _ListReading[T]:
        return _ListReading(self._values, 0 if at is None else cast("int", at["next"]))


class _ListReading(Generic[T]):
    def __init__(self, values: list[T], index: int) -> None:
        self._values = values
        self._index = index

    def __aiter__(self) -> _ListReading[T]:
        return self

    async def __anext__(self) -> Item[T]:
        if self._index >= len(self._values):
            raise StopAsyncIteration
        self._index += 1
        return Item(self._values[self._index - 1], {"next": self._index})
