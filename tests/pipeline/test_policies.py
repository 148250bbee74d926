"""What a stage does about failures: drop the item, call again, or give up on a call that takes too long."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline.deadline
from pipeline import (
    Drop,
    Dropped,
    Item,
    Plan,
    Quarantine,
    Retry,
    Sink,
    StageFailed,
    State,
    TimeLimit,
    TooManyDropped,
    start,
)
from pipeline.deadline import Call, watch
from pipeline.window import PENDING, Slot
from tests.contracts.engine import ListSource, SinkContract
from tests.pipeline.sources import Batches, Count, Flaky, Transient, within

Place = Literal["loop", "thread"]
PLACES: list[Place] = ["loop", "thread"]


class Records(list[Dropped]):
    def put(self, record: Dropped) -> None:
        self.append(record)

    @property
    def values(self) -> list[object]:
        return [record.value for record in self]


class Unlucky(ValueError):
    exit_code = 2

    def __init__(self, value: int) -> None:
        super().__init__(f"{value} is unlucky")
        self.provenance = f"rows.txt:{value}"


def unless_seventh(x: int) -> int:
    if x % 7 == 3:
        raise Unlucky(x)
    if x % 5 == 0:
        random.Random(x).randbytes(20_000)
    return x


async def unless_seventh_on_the_loop(x: int) -> int:
    for _ in range(x % 4):
        await asyncio.sleep(0)
    return unless_seventh(x)


def dropping(
    place: Place, records: Sink[Dropped], *, at_most: int = 99, n: int = 40, width: int = 1
) -> Plan[int]:
    function = unless_seventh_on_the_loop if place == "loop" else unless_seventh
    return Plan(Count(n)).map(function, name="lucky", width=width, on_error=Drop(records, at_most=at_most))


LUCKY = [x for x in range(40) if x % 7 != 3]
UNLUCKY = [x for x in range(40) if x % 7 == 3]


class TestDrop:
    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("width", [1, 2, 3, 8])
    def test_goes_on_without_the_item_at_every_width(self, place: Place, width: int) -> None:
        records = Records()
        with start(dropping(place, records, width=width)) as running:
            items = list(running)
            assert running.stats().stage("lucky").dropped == len(UNLUCKY)
        assert [item.value for item in items] == LUCKY
        assert records.values == UNLUCKY
        for item in items:
            before = sum(x < item.value for x in UNLUCKY)
            assert item.resume == {"source": {"next": item.value + 1}, "stages": {"lucky": before}}

    @pytest.mark.parametrize("place", PLACES)
    def test_a_record_says_what_was_dropped_and_why(self, place: Place) -> None:
        records = Records()
        with start(dropping(place, records)) as running:
            list(running)
        failure = records[1].failure
        assert (failure.stage, failure.index, failure.provenance) == ("lucky", 10, "rows.txt:10")
        assert failure.reason == "Unlucky: 10 is unlucky"
        assert isinstance(failure.__cause__, Unlucky)
        assert failure.__cause__.__traceback__ is not None

    @pytest.mark.parametrize("width", [1, 4])
    @pytest.mark.parametrize("place", PLACES)
    def test_one_too_many_fails_in_its_place(self, place: Place, width: int) -> None:
        records = Records()
        with start(dropping(place, records, at_most=2, width=width)) as running:
            assert [next(running).value for _ in range(15)] == [x for x in range(17) if x % 7 != 3]
            with pytest.raises(StageFailed) as error:
                next(running)
        assert records.values == [3, 10]
        failure = error.value
        assert (failure.stage, failure.index, failure.exit_code) == ("lucky", 17, 2)
        assert isinstance(failure.__cause__, TooManyDropped)
        assert str(failure.__cause__) == (
            "3 items failed, and 2 may be dropped; the last one: Unlucky: 17 is unlucky"
        )
        assert isinstance(failure.__cause__.__cause__, Unlucky)

    def test_the_bound_holds_over_resumes(self) -> None:
        """And a record of what was dropped behind the last item used comes again, but counts once."""
        with start(dropping("thread", Records(), at_most=2)) as running:
            at = next(item for item in running if item.value == 9).resume
        records = Records()
        with start(dropping("thread", records, at_most=2), at=json.loads(json.dumps(at))) as running:
            assert [next(running).value for _ in range(6)] == [11, 12, 13, 14, 15, 16]
            with pytest.raises(StageFailed) as error:
                next(running)
        assert records.values == [10]
        assert "3 items failed, and 2 may be dropped" in error.value.reason

    @pytest.mark.parametrize("place", PLACES)
    def test_the_last_items_may_be_dropped(self, place: Place) -> None:
        records = Records()
        with start(dropping(place, records, n=11, width=2).fold(Batches(4))) as running:
            assert [item.value for item in running] == [[0, 1, 2, 4], [5, 6, 7, 8], [9]]
        assert records.values == [3, 10]

    @pytest.mark.parametrize("place", PLACES)
    def test_all_items_may_be_dropped(self, place: Place) -> None:
        def fail(x: int) -> int:
            raise Unlucky(x)

        async def fail_on_loop(x: int) -> int:
            raise Unlucky(x)

        records = Records()
        function = fail_on_loop if place == "loop" else fail
        plan = Plan(Count(100), ahead=2).map(function, ahead=3, width=3, on_error=Drop(records, at_most=100))
        with within(20), start(plan.map(unless_seventh).fold(Batches(2))) as running:
            assert list(running) == []
        assert records.values == list(range(100))

    @pytest.mark.parametrize("last", [True, False])
    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SystemExit(1)])
    def test_a_sink_that_raises_fails_the_plan(self, last: bool, error: BaseException) -> None:
        """Wherever it is called: by the next stage's thread, or by the consumer's."""

        class Full:
            def put(self, record: Dropped) -> None:
                raise error

        plan = dropping("thread", Full(), width=3)
        with start(plan if last else plan.map(str)) as running:
            assert [int(next(running).value) for _ in range(3)] == [0, 1, 2]
            with pytest.raises(StageFailed, match="stage 'lucky' failed at item 3") as failure:
                next(running)
        assert failure.value.__cause__ is error

    def test_an_interrupt_while_the_consumer_is_in_the_sink_is_the_consumers(self) -> None:
        class Interrupted:
            def put(self, record: Dropped) -> None:
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt), start(dropping("thread", Interrupted(), width=3)) as running:
            list(running)

    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
    def test_an_interrupt_is_never_dropped(self, place: Place, kind: type[BaseException]) -> None:
        def interrupted(x: int) -> int:
            if x == 3:
                raise kind
            return x

        async def interrupted_on_loop(x: int) -> int:
            return interrupted(x)

        records = Records()
        function = interrupted_on_loop if place == "loop" else interrupted
        with start(Plan(Count(9)).map(function, on_error=Drop(records, at_most=9))) as running:
            assert [next(running).value for _ in range(3)] == [0, 1, 2]
            with pytest.raises(StageFailed) as failure:
                next(running)
        assert isinstance(failure.value.__cause__, kind)
        assert not records

    def test_only_the_stage_itself_drops(self) -> None:
        """What fails behind it, or in front of it, fails the plan."""
        records = Records()
        with (
            start(Plan(Count(9)).map(unless_seventh).map(str, on_error=Drop(records, at_most=9))) as running,
            pytest.raises(StageFailed, match="stage 'unless_seventh' failed"),
        ):
            list(running)
        with (
            start(
                Plan(Count(9)).map(str, on_error=Drop(records, at_most=9)).map(lambda x: 1 // 0)
            ) as running,
            pytest.raises(StageFailed, match="ZeroDivisionError"),
        ):
            next(running)
        assert not records

    def test_two_stages_count_for_themselves(self) -> None:
        first, second = Records(), Records()

        def even(x: int) -> int:
            if x % 2:
                raise Unlucky(x)
            return x

        plan = dropping("thread", first, width=2).map(even, width=3, on_error=Drop(second, at_most=50))
        with start(plan) as running:
            items = list(running)
        assert [item.value for item in items] == [x for x in LUCKY if x % 2 == 0]
        assert second.values == [x for x in LUCKY if x % 2]
        assert items[-1].resume == {"source": {"next": 37}, "stages": {"lucky": 5, "even": 15}}

    def test_nonsense_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at_most must be >= 1, got 0"):
            Drop(Records(), at_most=0)


class TestQuarantine(SinkContract):
    def make_sink(self, folder: Path) -> Sink[object]:
        return Quarantine(folder / "dropped.jsonl")  # type: ignore[return-value]  # a sink of Dropped alone

    def values(self) -> list[object]:
        return [
            Dropped(StageFailed("parse", 3, "ValueError: no", "rows.txt:4", 2), "x"),
            Dropped(StageFailed("parse", 10**12, "two\nlines, ünïcödé, \u2028"), b"x"),
            Dropped(StageFailed("parse", 5, "half a pair: \ud800"), None),
        ]

    def as_read_back(self, value: object) -> object:
        assert isinstance(value, Dropped)
        failure = value.failure
        return {
            "stage": failure.stage,
            "index": failure.index,
            "reason": failure.reason,
            "provenance": failure.provenance,
        }

    def read_back(self, sink: Sink[object], folder: Path) -> list[object]:
        lines = (folder / "dropped.jsonl").read_bytes().split(b"\n")
        assert lines.pop() == b"", "the last line is whole"
        return [json.loads(line.decode()) for line in lines]

    @pytest.fixture(autouse=True)
    def closed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """The suite does not know that this sink has a `close`."""
        made: list[Quarantine] = []
        really_open = Quarantine.__init__

        def opened(sink: Quarantine, path: Path) -> None:
            really_open(sink, path)
            made.append(sink)

        monkeypatch.setattr(Quarantine, "__init__", opened)
        yield
        for sink in made:
            sink.close()

    def test_is_its_owners_alone(self, tmp_path: Path) -> None:
        """Records may quote what was in the corpus."""
        with Quarantine(tmp_path / "dropped.jsonl"):
            assert stat.S_IMODE((tmp_path / "dropped.jsonl").stat().st_mode) == 0o600

    def test_appends(self, tmp_path: Path) -> None:
        for value in self.values():
            with Quarantine(tmp_path / "dropped.jsonl") as sink:
                assert isinstance(value, Dropped)
                sink.put(value)
            assert self.read_back(sink, tmp_path)[-1] == self.as_read_back(value)  # type: ignore[arg-type]
        assert len(self.read_back(sink, tmp_path)) == 3  # type: ignore[arg-type]


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays before further attempts, which are not waited for."""
    waited: list[float] = []
    really_delay = Retry.delay_s

    def delay_s(retry: Retry, attempts: int) -> float:
        waited.append(really_delay(retry, attempts))
        return 0.0

    monkeypatch.setattr(Retry, "delay_s", delay_s)
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    return waited


class Failing:
    """Raises `error` on item 3 so often."""

    def __init__(self, times: int, error: BaseException) -> None:
        self.times = times
        self.error = error
        self.calls = 0

    def __call__(self, x: int) -> int:
        if x == 3:
            self.calls += 1
            if self.calls <= self.times:
                raise self.error
        return x

    async def on_the_loop(self, x: int) -> int:
        await asyncio.sleep(0)
        return self(x)


def retrying(place: Place, function: Failing, retry: Retry, *, width: int = 1) -> Plan[int]:
    called: Callable[[int], object] = function.on_the_loop if place == "loop" else function
    return Plan(Count(20)).map(called, name="failing", width=width, retry=retry)  # type: ignore[return-value]


@pytest.mark.parametrize("place", PLACES)
class TestRetry:
    @pytest.mark.parametrize("width", [1, 3])
    def test_calls_again_until_it_succeeds(self, place: Place, width: int, delays: list[float]) -> None:
        function = Failing(4, Transient())
        with start(retrying(place, function, Retry(on=(Transient,), attempts=5), width=width)) as running:
            assert [item.value for item in running] == list(range(20))
            assert running.stats().stage("failing").retried == 4
        assert function.calls == 5
        assert delays == [0.1, 0.2, 0.4, 0.8]

    def test_gives_up_after_so_many_calls(self, place: Place, delays: list[float]) -> None:
        function = Failing(9, Transient("busy"))
        with start(
            retrying(place, function, Retry(on=(Transient,), attempts=3, first_s=5, most_s=7))
        ) as running:
            assert [next(running).value for _ in range(3)] == [0, 1, 2]
            with pytest.raises(StageFailed, match="failed at item 3: Transient: busy") as failure:
                next(running)
        assert failure.value.__cause__ is function.error
        assert function.calls == 3
        assert delays == [5, 7]

    @pytest.mark.parametrize(
        "error", [ValueError(), Exception(), KeyboardInterrupt(), SystemExit(), asyncio.CancelledError()]
    )
    def test_only_what_is_named_is_transient(
        self, place: Place, error: BaseException, delays: list[float]
    ) -> None:
        function = Failing(1, error)
        with start(retrying(place, function, Retry(on=(Transient, OSError)))) as running:
            assert [next(running).value for _ in range(3)] == [0, 1, 2]
            with pytest.raises(StageFailed):
                next(running)
        assert (function.calls, delays) == (1, [])

    def test_what_derives_from_it_is_transient_too(self, place: Place, delays: list[float]) -> None:
        function = Failing(1, ConnectionResetError())
        with start(retrying(place, function, Retry(on=(Transient, OSError)))) as running:
            assert len(list(running)) == 20
        assert delays == [0.1]

    def test_is_tried_again_before_it_is_dropped(self, place: Place, delays: list[float]) -> None:
        function = Failing(9, Transient())
        records = Records()
        called = function.on_the_loop if place == "loop" else function
        plan = Plan(Count(9)).map(
            called, retry=Retry(on=(Transient,), attempts=3), on_error=Drop(records, at_most=1)
        )
        with start(plan) as running:
            assert [item.value for item in running] == [0, 1, 2, 4, 5, 6, 7, 8]
        assert (function.calls, records.values) == (3, [3])

    def test_leaving_does_not_wait_for_the_next_attempt(self, place: Place) -> None:
        failed = threading.Event()

        class Hopeless(Failing):
            def __call__(self, x: int) -> int:
                try:
                    return super().__call__(x)
                finally:
                    if self.calls:
                        failed.set()

        plan = retrying(place, Hopeless(9, Transient()), Retry(on=(Transient,), first_s=1000, most_s=1000))
        with within(10), start(plan) as running:
            next(running)
            assert failed.wait(10)


class TestRetryOfSources:
    def test_is_read_again_from_the_last_item(self, delays: list[float]) -> None:
        source = Flaky(12, {0: 2, 5: 1, 9: 3})
        with start(Plan(source, retry=Retry(on=(Transient,), attempts=4)).map(str)) as running:
            items = list(running)
            assert running.stats().stage("source").retried == 6
        assert [item.value for item in items] == [str(i) for i in range(12)]
        assert [item.resume for item in items] == [{"next": i + 1} for i in range(12)]
        assert source.opened_at == [None, None, None, 5, 9, 9, 9]
        assert source.opened == source.closed
        # Each item that was read in between starts the count anew.
        assert delays == [0.1, 0.2, 0.1, 0.1, 0.2, 0.4]

    def test_is_read_again_from_where_the_plan_started(self, delays: list[float]) -> None:
        source = Flaky(12, {7: 1})
        plan = Plan(source, retry=Retry(on=(Transient,))).fold(Batches(2))
        at: State = {"source": {"next": 7}, "stages": {"Batches": {"carry": [6]}}}
        with start(plan, at=at) as running:
            assert [item.value for item in running] == [[6, 7], [8, 9], [10, 11]]
        assert source.opened_at == [7, 7]

    def test_gives_up_after_so_many_readings(self, delays: list[float]) -> None:
        source = Flaky(12, {5: 9})
        with start(Plan(source, retry=Retry(on=(Transient,), attempts=3))) as running:
            assert [next(running).value for _ in range(5)] == list(range(5))
            with pytest.raises(StageFailed, match="stage 'source' failed at item 5: Transient: item 5"):
                next(running)
        assert source.opened_at == [None, 5, 5]
        assert delays == [0.1, 0.2]

    def test_nothing_is_tried_again_unless_asked(self) -> None:
        source = Flaky(12, {5: 1})
        with start(Plan(source)) as running:
            assert [next(running).value for _ in range(5)] == list(range(5))
            with pytest.raises(StageFailed, match="Transient"):
                next(running)
        with (
            start(Plan(Flaky(12, {5: 1}), retry=Retry(on=(OSError,)))) as running,
            pytest.raises(StageFailed, match="Transient"),
        ):
            list(running)
        assert source.opened_at == [None]

    def test_leaving_does_not_wait_for_the_next_attempt(self) -> None:
        failed = threading.Event()

        class Hopeless(Count):
            async def read(self, at: State | None) -> AsyncIterator[Item[int]]:
                failed.set()
                raise Transient
                yield

        with within(10), start(Plan(Hopeless(9), retry=Retry(on=(Transient,), first_s=1e6, most_s=1e6))):
            assert failed.wait(10)


@given(first_s=st.floats(0, 10), factor=st.floats(1, 4), most_s=st.floats(0, 60), attempts=st.integers(1, 50))
def test_delays_grow_up_to_a_limit_and_differ(
    first_s: float, factor: float, most_s: float, attempts: int
) -> None:
    retry = Retry(on=(OSError,), first_s=first_s, factor=factor, most_s=most_s)
    longest = min(first_s * factor ** (attempts - 1), most_s)
    drawn = [retry.delay_s(attempts) for _ in range(20)]
    assert all(longest / 2 <= delay <= longest for delay in drawn)
    assert longest < 1e-300 or len(set(drawn)) > 1


def test_delays_after_thousands_of_attempts() -> None:
    """As the 2,000th power of 2, which is no float."""
    assert 5 <= Retry(on=(OSError,)).delay_s(2_000) <= 10
    assert Retry(on=(OSError,), first_s=0).delay_s(2_000) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": ()}, r"on must name one or more Exception classes, got \(\)"),
        ({"on": (KeyboardInterrupt,)}, "on must name one or more Exception classes"),
        ({"on": (OSError(),)}, "on must name one or more Exception classes"),
        ({"on": (OSError,), "attempts": 1}, "attempts must be >= 2, got 1"),
        ({"on": (OSError,), "first_s": -1.0}, "first_s and most_s must be >= 0"),
        ({"on": (OSError,), "factor": 0.5}, "factor >= 1"),
    ],
)
def test_nonsense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retry(**options)  # type: ignore[arg-type]


LIMIT_S = 0.05


class Stuck:
    """Does not return from some items until it is let go."""

    def __init__(self, *items: int) -> None:
        self.items = items
        self.release = threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self, x: int) -> int:
        if x in self.items:
            self.threads.append(threading.current_thread())
            assert self.release.wait(30)
        return x

    async def on_the_loop(self, x: int) -> int:
        if x in self.items:
            await asyncio.get_running_loop().create_future()
        return x

    def let_go(self) -> None:
        self.release.set()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()


class TestTimeLimit:
    @pytest.mark.parametrize("width", [1, 3])
    def test_on_the_loop_the_call_is_cancelled(self, width: int) -> None:
        plan = Plan(Count(20)).map(Stuck(3).on_the_loop, name="stuck", width=width, time_limit_s=LIMIT_S)
        with start(plan) as running:
            assert [next(running).value for _ in range(3)] == [0, 1, 2]
            with pytest.raises(StageFailed, match="stage 'stuck' failed at item 3: TimeLimit") as failure:
                next(running)
        assert isinstance(failure.value.__cause__, TimeLimit)
        assert (
            str(failure.value.__cause__) == f"the call did not return within {LIMIT_S} s, and was cancelled"
        )

    def test_a_timeout_of_the_functions_own_is_not_the_stages(self) -> None:
        async def impatient(x: int) -> int:
            raise TimeoutError("of its own")

        with (
            start(Plan(Count(3)).map(impatient, time_limit_s=30)) as running,
            pytest.raises(StageFailed, match="TimeoutError: of its own"),
        ):
            next(running)

    @pytest.mark.parametrize("width", [1, 3])
    def test_in_a_thread_it_is_abandoned_and_named(self, width: int) -> None:
        stuck = Stuck(3)
        plan = Plan(Count(20)).map(stuck, name="stuck", width=width, time_limit_s=LIMIT_S)
        with start(plan) as running:
            assert [next(running).value for _ in range(3)] == [0, 1, 2]
            with pytest.raises(StageFailed, match="stage 'stuck' failed at item 3: TimeLimit") as failure:
                next(running)
        (thread,) = stuck.threads
        assert isinstance(failure.value.__cause__, TimeLimit)
        assert str(failure.value.__cause__) == (
            f"the call did not return within {LIMIT_S} s; its thread '{thread.name}' is abandoned"
        )
        assert thread.name.startswith("stuck-")
        assert thread.is_alive()
        assert thread.daemon
        stuck.let_go()

    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("width", [1, 2, 4])
    def test_dropped_the_plan_goes_on_at_full_width(self, place: Place, width: int) -> None:
        """More calls are stuck than there are workers; afterwards `width` calls meet."""
        stuck = Stuck(0, 1, 2, 5, 6)
        together = threading.Barrier(width)
        on_loop = asyncio.Barrier(width)

        def meets(x: int) -> int:
            if 20 <= x < 20 + width:
                together.wait(10)
            return stuck(x)

        async def meets_on_loop(x: int) -> int:
            if 20 <= x < 20 + width:
                await on_loop.wait()
            return await stuck.on_the_loop(x)

        records = Records()
        plan = Plan(Count(40)).map(
            meets_on_loop if place == "loop" else meets,
            width=width,
            ahead=width,  # or a worker would take several of them, one after the other
            time_limit_s=0.3,
            on_error=Drop(records, at_most=5),
        )
        with within(30), start(plan) as running:
            items = list(running)
        assert [item.value for item in items] == [3, 4, 7, *range(8, 40)]
        assert records.values == [0, 1, 2, 5, 6]
        assert all(isinstance(record.failure.__cause__, TimeLimit) for record in records)
        stuck.let_go()

    def test_what_an_abandoned_thread_returns_reaches_nobody(self) -> None:
        """It returns while the plan is still running."""
        stuck = Stuck(0)
        gone = threading.Event()

        def first_stuck(x: int) -> int:
            if x == 5:
                stuck.let_go()
                gone.set()
            return 100 + stuck(x)

        records = Records()
        plan = Plan(Count(20)).map(first_stuck, time_limit_s=0.3, on_error=Drop(records, at_most=1))
        with within(30), start(plan) as running:
            items = list(running)
            assert gone.is_set()
        assert [item.value for item in items] == [100 + x for x in range(1, 20)]
        assert [item.resume["stages"] for item in items] == [{"first_stuck": 1}] * 19
        assert records.values == [0]

    def test_a_call_that_raises_after_its_time_is_not_failed_twice(self) -> None:
        stuck = Stuck(0)

        def raises(x: int) -> int:
            if x == 5:
                stuck.let_go()
            stuck(x)
            if x == 0:
                raise ValueError
            return x

        records = Records()
        plan = Plan(Count(20)).map(raises, time_limit_s=0.3, on_error=Drop(records, at_most=1))
        with within(30), start(plan) as running:
            assert [item.value for item in running] == list(range(1, 20))
        assert records.values == [0]
        assert running.stats().stage("raises").dropped == 1
        assert records[0].failure.reason.startswith("TimeLimit")

    def test_calls_are_looked_at_when_the_first_one_runs_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 10.0
        slept: list[float] = []
        calls = [Call(Slot(PENDING, i, None, None, 0), began) for i, began in enumerate([9.5, 9.25, 9.75])]
        expired: list[Call] = []

        async def sleep(seconds: float) -> None:
            nonlocal now
            slept.append(seconds)
            now += seconds
            if len(slept) == 3:
                raise asyncio.CancelledError

        monkeypatch.setattr(pipeline.deadline, "perf_counter", lambda: now)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(watch(lambda: [call for call in calls if call not in expired], 1.0, expired.append))
        assert slept == [0.25, 0.25, 0.25]
        assert [call.slot.index for call in expired] == [1, 0]

    @pytest.mark.parametrize("place", PLACES)
    def test_it_is_of_each_attempt(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is waited between two attempts is longer than the limit, and is in no call."""
        monkeypatch.setattr(random, "uniform", lambda low, high: high)
        function = Failing(1, Transient())
        called = function.on_the_loop if place == "loop" else function
        retry = Retry(on=(Transient,), first_s=0.8)
        with start(Plan(Count(6)).map(called, time_limit_s=0.3, retry=retry)) as running:
            assert [item.value for item in running] == list(range(6))

    @pytest.mark.parametrize("place", PLACES)
    def test_it_is_of_further_attempts_too(self, place: Place) -> None:
        stuck = Stuck(3)
        attempts: list[int] = []

        def fail_first(x: int) -> None:
            if x == 3:
                attempts.append(x)
                if len(attempts) == 1:
                    raise Transient

        def in_thread(x: int) -> int:
            fail_first(x)
            return stuck(x)

        async def on_the_loop(x: int) -> int:
            fail_first(x)
            return await stuck.on_the_loop(x)

        records = Records()
        plan = Plan(Count(6)).map(
            on_the_loop if place == "loop" else in_thread,
            time_limit_s=0.3,
            retry=Retry(on=(Transient,), first_s=0),
            on_error=Drop(records, at_most=1),
        )
        with within(30), start(plan) as running:
            assert [item.value for item in running] == [0, 1, 2, 4, 5]
        assert isinstance(records[0].failure.__cause__, TimeLimit)
        assert len(attempts) == 2
        stuck.let_go()

    @pytest.mark.parametrize("place", PLACES)
    def test_it_is_of_each_call_not_of_many(self, place: Place) -> None:
        """Calls that are taken together, and that take longer than that together, are in time."""

        async def on_the_loop(x: int) -> int:
            return spin(x)

        def spin(x: int) -> int:
            random.Random(x).randbytes(100_000)
            return x

        plan = Plan(Count(1500)).map(on_the_loop if place == "loop" else spin, ahead=64, time_limit_s=0.25)
        with start(plan) as running:
            assert len(list(running)) == 1500


def test_a_list_of_records_is_no_state() -> None:
    """A plan whose map drops nothing has a state that counts: it is started by the plan that drops, alone."""
    with start(dropping("thread", Records(), n=3)) as running:
        assert [item.resume for item in running] == [
            {"source": {"next": i + 1}, "stages": {"lucky": 0}} for i in range(3)
        ]
    with start(Plan(ListSource([0])).map(unless_seventh)) as running:
        assert [item.resume for item in running] == [{"next": 1}]
