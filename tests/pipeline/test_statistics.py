"""Meters and snapshots: what is counted, how it adds up, and what lies between two snapshots."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import ConsumerStats, Drop, Dropped, Plan, Retry, StageStats, Stats, start
from pipeline.statistics import Histogram, Meter

from .sources import Count

latencies = st.lists(st.floats(0, 1e5), min_size=1, max_size=50)


def stage(meters: Sequence[Meter], *, name: str = "f", width: int = 2) -> StageStats:
    return StageStats.of(meters, name=name, on="thread", width=width, can_widen=True, queued=3, ahead=32)


def stats(elapsed_s: float, stages: Sequence[StageStats], items: int = 0) -> Stats:
    consumer = ConsumerStats(items=items, busy_s=0.5 * elapsed_s, waited_s=0.5 * elapsed_s)
    return Stats(elapsed_s=elapsed_s, stages=tuple(stages), consumer=consumer, queued_bytes=5, budget_bytes=7)


def record(meter: Meter, seconds: Sequence[float]) -> None:
    for index, each in enumerate(seconds):
        meter.call(index, 10.0, 10.0 + each)
        meter.out(1, 100)
        meter.starved(2 * each)
        meter.blocked(3 * each)
        meter.computed(each / 2)
        if index % 3 == 0:
            meter.retried()
        if index % 5 == 0:
            meter.dropped()


class TestHistogram:
    @given(latencies, st.floats(0, 1))
    def test_a_quantile_is_within_a_bucket_of_the_exact_one(self, seconds: list[float], q: float) -> None:
        exact = sorted(seconds)[max(0, math.ceil(q * len(seconds)) - 1)]
        assert Histogram.of(seconds).quantile(q) == pytest.approx(exact, rel=0.0626, abs=17e-9)

    @given(latencies, latencies)
    def test_parts_add_up_and_come_apart(self, first: list[float], second: list[float]) -> None:
        both = Histogram.of(first + second)
        assert Histogram.of(first) + Histogram.of(second) == both
        assert both - Histogram.of(first) == Histogram.of(second)
        assert both.count == len(first) + len(second)

    def test_centuries_and_nothing_have_buckets(self) -> None:
        assert Histogram.of([1e10]).quantile(1) == pytest.approx(1e10, rel=0.07)
        assert Histogram.of([0.0]).quantile(0.5) < 10e-9

    def test_no_calls_took_no_time(self) -> None:
        assert Histogram().quantile(0.5) == 0.0

    @pytest.mark.parametrize("q", [-0.1, 1.1, float("nan")])
    def test_a_quantile_is_a_share(self, q: float) -> None:
        with pytest.raises(ValueError, match=r"in \[0, 1\]"):
            Histogram().quantile(q)

    def test_the_number_of_buckets_is_fixed(self) -> None:
        with pytest.raises(ValueError, match="488 buckets, got 2"):
            Histogram((1, 2))


class TestMeter:
    def test_calls_timed_together_count_each_with_their_mean(self) -> None:
        alone, together = Meter(), Meter()
        for index in range(8):
            alone.call(index, 1.0, 1.5)
        together.calls(0, 8, 1.0, 5.0)
        assert together.latencies() == alone.latencies()
        assert together.busy_s == alone.busy_s == 4.0

    def test_waits_inside_a_call_are_not_work(self) -> None:
        meter = Meter()
        meter.call(0, 1.0, 4.0, 2.75)
        assert meter.busy_s == 0.25
        assert meter.latencies() == Histogram.of([0.25])


class TestStageStats:
    def test_adds_up_its_workers(self) -> None:
        one, other = Meter(), Meter()
        record(one, [0.25] * 4)
        record(other, [0.5] * 2)
        got = stage([one, other])
        assert (got.calls, got.items, got.bytes) == (6, 6, 600)
        assert (got.busy_s, got.starved_s, got.blocked_s, got.cpu_s) == (2.0, 4.0, 6.0, 1.0)
        assert (got.retried, got.dropped, got.queued, got.ahead) == (3, 2, 3, 32)
        assert got.p50_s == pytest.approx(0.25, rel=0.07)
        assert got.p99_s == pytest.approx(0.5, rel=0.07)

    def test_is_frozen(self) -> None:
        got = stage([Meter()])
        with pytest.raises(FrozenInstanceError):
            got.items = 1  # type: ignore[misc]  # that is what is tested

    def test_may_be_taken_while_workers_count(self) -> None:
        meters = [Meter() for _ in range(2)]
        calls = 20_000

        def work(meter: Meter) -> None:
            for index in range(calls):
                meter.call(index, 0.0, 1e-6)

        threads = [threading.Thread(target=work, args=(meter,)) for meter in meters]
        for thread in threads:
            thread.start()
        seen = [0]
        while any(thread.is_alive() for thread in threads):
            seen.append(stage(meters).calls)
        for thread in threads:
            thread.join()
        assert seen == sorted(seen)
        assert stage(meters).calls == 2 * calls


class TestStats:
    @given(st.lists(latencies, min_size=1, max_size=3), st.lists(latencies, min_size=1, max_size=3))
    def test_since_is_what_came_after(self, before: list[list[float]], after: list[list[float]]) -> None:
        whole, tail = [Meter() for _ in range(3)], [Meter() for _ in range(3)]
        for meter, seconds in zip(whole, before, strict=False):
            record(meter, seconds)
        earlier = stats(10.0, [stage(whole)], items=4)
        for number, seconds in enumerate(after):
            record(whole[number], seconds)
            record(tail[number], seconds)
        got = stats(15.0, [stage(whole)], items=9).since(earlier)
        (now,), expected = got.stages, stage(tail)
        assert (got.elapsed_s, got.consumer.items, got.consumer.waited_s) == (5.0, 5, 2.5)
        assert (now.latencies, now.items, now.bytes) == (expected.latencies, expected.items, expected.bytes)
        assert (now.retried, now.dropped) == (expected.retried, expected.dropped)
        for figure in ("busy_s", "starved_s", "blocked_s", "cpu_s"):
            assert getattr(now, figure) == pytest.approx(getattr(expected, figure), rel=1e-6, abs=1e-6)

    def test_since_the_start_is_all(self) -> None:
        meter = Meter()
        nothing = stats(0.0, [stage([meter])])
        record(meter, [0.5, 0.25])
        now = stats(2.0, [stage([meter])], items=2)
        assert now.since(nothing) == now

    def test_since_refuses_another_plans_snapshot(self) -> None:
        with pytest.raises(ValueError, match=r"another plan: its stages are \['g'\], here they are \['f'\]"):
            stats(2.0, [stage([Meter()])]).since(stats(1.0, [stage([Meter()], name="g")]))

    def test_since_refuses_a_later_snapshot(self) -> None:
        with pytest.raises(ValueError, match=r"later\.since\(earlier\)"):
            stats(1.0, [stage([Meter()])]).since(stats(2.0, [stage([Meter()])]))

    def test_is_plain_json_data(self) -> None:
        meter = Meter()
        record(meter, [0.5])
        plain = stats(1.0, [stage([meter])], items=1).to_json()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert plain["consumer"] == {"items": 1, "busy_s": 0.5, "waited_s": 0.5}
        (only,) = plain["stages"] if isinstance(plain["stages"], list) else []
        assert isinstance(only, dict)
        fields = set(StageStats.__slots__) - {"latencies"}
        assert set(only) == fields | {"calls", "p50_s", "p99_s"}

    def test_prints_a_table(self) -> None:
        meter = Meter()
        record(meter, [0.0125] * 100)
        lines = str(
            stats(2.5, [stage([meter], name="décode"), stage([Meter()], name="g")], items=1000)
        ).splitlines()
        assert lines[0] == "2.5 s, 400.0 items/s; 0.0 of 0.0 MB queued"
        assert lines[1].split() == [
            *("stage", "on", "width", "calls", "items", "MB"),
            *("busy", "starved", "blocked", "cpu", "queued", "p50", "p99"),
        ]
        assert lines[2].split() == [
            *("décode", "thread", "2", "100", "100", "0.0"),
            *("25%", "100%", "150%", "12%", "3/32", "12.1", "ms", "12.1", "ms"),
        ]
        assert lines[4].split() == ["consumer", "1,000", "50%", "50%"]
        assert lines[5] == "décode: 34 calls made again, 20 items dropped"
        assert len({line.index("thread") for line in lines[2:4]}) == 1

    def test_prints_before_anything_has_happened(self) -> None:
        assert "0.0 items/s" in str(stats(0.0, [stage([Meter()])]))


def rest_a_little(x: int) -> int:
    time.sleep(0.002)
    return x


class Pairs:
    """Joins two values."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.out: list[tuple[int, ...]] = []

    def accept(self, value: int) -> None:
        self.held.append(value)
        if len(self.held) == 2:
            self.out.append(tuple(self.held))
            self.held = []

    def emit(self) -> tuple[int, ...] | None:
        return self.out.pop(0) if self.out else None

    def finish(self) -> tuple[int, ...] | None:
        rest, self.held = tuple(self.held), []
        return rest or None

    def state(self) -> dict[str, object]:
        return {"held": list(self.held), "out": [list(each) for each in self.out]}

    def restore(self, state: dict[str, object]) -> None:
        raise NotImplementedError


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.values: list[Dropped] = []

    def put(self, value: Dropped) -> None:
        self.values.append(value)


class TestRunningPlan:
    def test_counts_every_call_item_and_failure(self) -> None:
        failed_once: set[int] = set()

        def unsteady(x: int) -> int:
            if x % 10 == 0:
                raise KeyError(x)
            if x % 4 == 0 and x not in failed_once:
                failed_once.add(x)
                raise OSError("again")
            return x

        policy = Drop(at_most=100, to=Kept())
        again = Retry(on=(OSError,), attempts=2, first_s=0.0)
        plan = (
            Plan(Count(100))
            .map(rest_a_little, width=3)
            .map(unsteady, retry=again, on_error=policy)
            .fold(Pairs())
        )
        with start(plan) as running:
            items = [item.value for item in running]
            got = running.stats()
        assert len(items) == 45
        source, rest, drops, pairs = got.stages
        assert [each.items for each in got.stages] == [100, 100, 90, 45]
        assert (source.calls, rest.calls, drops.calls) == (100, 100, 100)
        assert pairs.calls in (90, 91)  # the end may be one
        assert (drops.retried, drops.dropped) == (20, 10)
        assert (rest.on, rest.width, rest.can_widen, pairs.on, pairs.can_widen) == (
            "thread",
            3,
            True,
            "thread",
            False,
        )
        assert (source.on, source.can_widen, got.consumer.items) == ("source", False, 45)
        assert 0.2 <= rest.busy_s <= 3 * got.elapsed_s
        assert rest.cpu_s < rest.busy_s
        assert rest.p50_s >= 0.0018
        assert drops.starved_s > 0
        assert got.consumer.waited_s + got.consumer.busy_s == pytest.approx(got.elapsed_s)
        assert all(0 <= each.starved_s + each.blocked_s <= 1.01 * got.elapsed_s for each in got.stages)

    def test_a_slow_consumer_shows_as_blocked_stages_that_hold_what_they_may(self) -> None:
        with start(Plan(Count(40), ahead=4).map(rest_a_little, ahead=4)) as running:
            for _ in range(3):
                next(running)
                time.sleep(0.05)  # what it does with an item
            got = running.stats()
        assert got.stages[0].blocked_s > 0
        assert all(2 <= each.queued <= 4 for each in got.stages)  # refilled once half of it is free
        assert 0 < got.queued_bytes <= got.budget_bytes


@pytest.mark.parametrize("items", [2, 4])
def test_the_clock_stands_still_once_a_plan_is_left_or_over(items: int) -> None:
    with start(Plan(Count(3))) as running:
        for _ in islice(running, items):
            pass
    ended = running.stats()
    assert running.stats() == ended
