"""The contract suites on the engine's own doubles."""

from __future__ import annotations

from pathlib import Path

from pipeline import Map, Sink, Source
from tests.contracts.engine import ListSource, MapContract, SinkContract, SourceContract
from tests.pipeline.sources import Count, Kept, double, triple


class TestGenerator(SourceContract):
    def make_source(self) -> Source[object]:
        return Count(20, pauses=True)


class TestPlainIterator(SourceContract):
    def make_source(self) -> Source[object]:
        return ListSource([*"abcdefg"])


class TestOnTheLoop(MapContract):
    def make_map(self) -> Map[object, object]:
        return double

    def values(self) -> list[object]:
        return [*range(10)]


class TestInThreads(MapContract):
    def make_map(self) -> Map[object, object]:
        return triple

    def values(self) -> list[object]:
        return [*range(10)]


class TestKept(SinkContract):
    def make_sink(self, folder: Path) -> Sink[object]:
        return Kept()

    def values(self) -> list[object]:
        return [*range(20)]

    def read_back(self, sink: Sink[object], folder: Path) -> list[object]:
        assert isinstance(sink, Kept)
        return sink.values
