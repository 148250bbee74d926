"""A plan refuses nonsense when it is built, and never changes."""

from __future__ import annotations

from functools import partial

import pytest

import pipeline
from pipeline import Plan, Retry, TimeLimit
from tests.pipeline.sources import Count, double, triple


class Halve:
    async def __call__(self, x: int) -> float:
        return x / 2


def test_map_leaves_the_plan_as_it_was() -> None:
    plan = Plan(Count(3))
    longer = plan.map(triple)
    assert plan.names == ("source",)
    assert longer.names == ("source", "triple")
    assert repr(longer) == "Plan(source -> triple)"


@pytest.mark.parametrize(
    ("function", "place"),
    [(double, "loop"), (partial(double), "loop"), (Halve(), "loop"), (triple, "thread"), (abs, "thread")],
)
def test_place_follows_from_the_function(function: object, place: str) -> None:
    assert Plan(Count(3)).map(function).stages[0].place == place


@pytest.mark.parametrize(
    ("function", "name"),
    [(triple, "triple"), (partial(partial(triple)), "triple"), (Halve(), "Halve"), (abs, "abs")],
)
def test_names_follow_from_the_function(function: object, name: str) -> None:
    assert Plan(Count(3)).map(function).names[-1] == name


def test_names_are_unique() -> None:
    plan = Plan(Count(3)).map(triple).map(triple).map(triple)
    assert plan.names == ("source", "triple", "triple-2", "triple-3")
    with pytest.raises(ValueError, match="triple: the plan has a stage of that name already"):
        plan.map(double, name="triple")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "triple: width must be >= 1, got 0"),
        ({"ahead": 0}, "triple: ahead must be >= 1, got 0"),
        ({"width": 4, "ahead": 3}, "triple: ahead must be >= width"),
        ({"on": "gpu"}, "triple: on must be 'loop', 'thread' or 'process', got 'gpu'"),
        (
            {"retry": Retry(on=(TimeLimit,))},
            "a call in a thread that runs over its time limit is not made again",
        ),
        ({"time_limit_s": 0}, "triple: time_limit_s must be > 0, got 0"),
        ({"on": "loop", "time_limit_s": 1}, "triple: nothing can interrupt a def on the loop"),
    ],
)
def test_nonsense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(Count(3)).map(triple, **options)


def test_nonsense_in_the_source_is_refused() -> None:
    with pytest.raises(ValueError, match="source: ahead must be >= 1, got 0"):
        Plan(Count(3), ahead=0)


def test_async_def_in_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="double: an async def runs on the loop"):
        Plan(Count(3)).map(double, on="thread")


def test_all_names_are_exported() -> None:
    assert all(hasattr(pipeline, name) for name in pipeline.__all__)
