"""The contract suites on the engine's own doubles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from pipeline import Dropped, Map, Quarantine, Sink, Source, StageFailed
from tests.contracts.engine import ListSource, MapContract, SinkContract, SourceContract
from tests.pipeline.sources import Count, Kept, TwoArguments, double, triple


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


class TestQuarantine(SinkContract):
    """Read back while it is open: a line is written out at once."""

    def make_sink(self, folder: Path) -> Sink[object]:
        self.quarantine = Quarantine(folder / "dropped.jsonl")
        return cast("Sink[object]", self.quarantine)

    def teardown_method(self) -> None:
        self.quarantine.close()

    def values(self) -> list[object]:
        errors = [ValueError("two\nlines"), TwoArguments("a.jsonl", 7), ValueError("\udc80")]
        failures = [StageFailed.of(error, stage="parse", index=i) for i, error in enumerate(errors)]
        return [Dropped(failure, value=b"what failed") for failure in failures]

    def read_back(self, sink: Sink[object], folder: Path) -> list[object]:
        return [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]

    def as_read_back(self, value: object) -> object:
        assert isinstance(value, Dropped)
        failure = value.failure
        return {
            "stage": "parse",
            "index": failure.index,
            "reason": failure.reason,
            "provenance": failure.provenance,
        }
