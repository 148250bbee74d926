"""What every source and every map must do: subclass, say how to make one, and inherit the tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from contextlib import aclosing
from typing import cast

import pytest

from pipeline import JSON, Item, Map, Plan, Source, State, start


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


class ListSource:
    """A source over a list: the simplest there is, and the double for tests of whatever takes a source."""

    def __init__(self, values: list[object]) -> None:
        self._values = values

    def read(self, at: State | None) -> _ListReading:
        return _ListReading(self._values, 0 if at is None else cast("int", at["next"]))


class _ListReading:
    def __init__(self, values: list[object], index: int) -> None:
        self._values = values
        self._index = index

    def __aiter__(self) -> _ListReading:
        return self

    async def __anext__(self) -> Item[object]:
        if self._index >= len(self._values):
            raise StopAsyncIteration
        self._index += 1
        return Item(self._values[self._index - 1], {"next": self._index})
