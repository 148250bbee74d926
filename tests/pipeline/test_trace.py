"""Traces: what the format asks for, arrows that pair up, and files that open after any end."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pipeline import Fold, Item, PipelineError, Plan, State, start
from pipeline.plan import AHEAD
from pipeline.trace import SHOWN_WAIT_S, Flow, Trace

from .sources import Count, double

Event = dict[str, Any]
HERE = Flow("source", "t", False)


class Thirds:
    """Joins three values into one, which it gives twice."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.out: list[int] = []

    def accept(self, value: int) -> None:
        self.held.append(value)
        if len(self.held) == 3:
            self.out = [sum(self.held)] * 2
            self.held = []

    def emit(self) -> int | None:
        return self.out.pop() if self.out else None

    def finish(self) -> int | None:
        return self.held.pop() if self.held else None

    def state(self) -> State:
        return {"held": list(self.held), "out": list(self.out)}

    def restore(self, state: State) -> None:
        raise NotImplementedError


def rest(x: int) -> int:
    time.sleep(0.003)
    return x


def plan(n: int = 60) -> Plan[int]:
    fold: Fold[int, int] = Thirds()
    return (
        Plan(Count(n))
        .map(double, width=2)
        .fold(fold, name='the "fold" 100%d')
        .map(rest, width=3)
        .map(abs, on="process", width=1)
    )


def trace_of(path: Path, traced: Plan[int]) -> list[Event]:
    with start(traced, trace=path) as running:
        for _ in running:
            pass
    events: list[Event] = json.loads(path.read_text())
    return events


def by_track(events: list[Event], phase: str) -> dict[int, list[Event]]:
    tracks: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == phase:
            tracks[event["tid"]].append(event)
    return tracks


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return trace_of(tmp_path_factory.mktemp("trace") / "trace.json", plan())


class TestEvents:
    def test_each_has_the_keys_of_the_format(self, events: list[Event]) -> None:
        keys = {
            "M": {"args"},
            "X": {"ts", "dur", "cat"},
            "C": {"ts", "args"},
            "s": {"ts", "id", "cat"},
            "t": {"ts", "id", "cat"},
            "f": {"ts", "id", "cat", "bp"},
        }
        assert {event["ph"] for event in events} == set(keys)
        for event in events:
            assert keys[event["ph"]] | {"ph", "name", "pid", "tid"} <= set(event)
            assert event.get("ts", 0) >= 0
            assert event.get("dur", 0) >= 0
            assert event.get("bp", "e") == "e"

    def test_each_worker_has_a_track_in_the_plans_order(self, events: list[Event]) -> None:
        meta = [event for event in events if event["ph"] == "M"]
        names = {event["tid"]: event["args"]["name"] for event in meta if event["name"] == "thread_name"}
        order = {
            event["tid"]: event["args"]["sort_index"]
            for event in meta
            if event["name"] == "thread_sort_index"
        }
        assert [names[track] for track in sorted(names, key=lambda track: order[track])] == [
            *(
                "source-0",
                "double-0",
                "double-1",
                'the "fold" 100%d-0',
                "rest-0",
                "rest-1",
                "rest-2",
                "abs-0",
            ),
        ]
        assert {event["tid"] for event in events} == {0, *names}

    def test_each_call_is_a_slice_with_its_item(self, events: list[Event]) -> None:
        calls: dict[str, list[int]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "call" and event["args"]:
                calls[event["name"]].append(event["args"]["item"])
        assert {name: sorted(items) for name, items in calls.items()} == {
            "source": list(range(60)),
            "double": list(range(60)),
            'the "fold" 100%d': list(range(60)),
            "rest": list(range(40)),
            "abs": list(range(40)),
        }

    def test_a_slice_lasts_as_long_as_its_call(self, events: list[Event]) -> None:
        rests = [event["dur"] for event in events if event["name"] == "rest"]
        assert min(rests) >= 2900

    def test_slices_of_a_track_follow_one_another_or_nest(self, events: list[Event]) -> None:
        for slices in by_track(events, "X").values():
            assert_nested(slices)

    def test_arrows_start_once_and_never_go_back(self, events: list[Event]) -> None:
        flows: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if event["ph"] in "stf":
                flows[event["id"]].append(event)
        assert set(flows) == {
            *(f"source-{number}" for number in range(60)),
            *(f'the "fold" 100%d-{number}' for number in range(40)),
        }
        for flow in flows.values():
            flow.sort(key=lambda event: event["ts"])
            assert [event["ph"] for event in flow] == ["s", "t", "f"]
            assert len({event["name"] for event in flow}) == 1

    def test_arrows_hang_on_slices(self, events: list[Event]) -> None:
        slices = by_track(events, "X")
        for phase in "stf":
            for track, ends in by_track(events, phase).items():
                for end in ends:
                    assert any(
                        each["ts"] <= end["ts"] <= each["ts"] + each["dur"] + 0.001
                        for each in slices[track]
                        if each["cat"] == "call"
                    )

    def test_waits_of_a_millisecond_are_shown(self, events: list[Event]) -> None:
        waits = [event for event in events if event.get("cat") == "wait"]
        assert {event["name"] for event in waits} <= {"waits for input", "waits for room"}
        assert {event["tid"] for event in waits} & {5, 6, 7}, (
            "three threads rest longer than their input takes"
        )
        assert all(event["dur"] >= SHOWN_WAIT_S * 1e6 for event in waits)

    def test_counters_show_windows_and_bytes(self, events: list[Event]) -> None:
        counters = [event for event in events if event["ph"] == "C"]
        assert {event["name"] for event in counters} == {
            *(
                "source: items",
                "double: items",
                'the "fold" 100%d: items',
                "rest: items",
                "abs: items",
                "bytes",
            ),
        }
        assert all(0 <= event["args"]["value"] <= AHEAD for event in counters if event["name"] != "bytes")


def assert_nested(slices: list[Event]) -> None:
    """Any two slices are apart, or one lies in the other."""
    open_until: list[float] = []
    for each in sorted(slices, key=lambda each: (each["ts"], -each["dur"])):
        ends = each["ts"] + each["dur"]
        while open_until and open_until[-1] <= each["ts"] + 0.002:  # each figure is rounded to a ns
            open_until.pop()
        assert not open_until or ends <= open_until[-1] + 0.002, each
        open_until.append(ends)


class TestEnds:
    def test_a_source_alone_has_no_arrows(self, tmp_path: Path) -> None:
        events = trace_of(tmp_path / "trace.json", Plan(Count(3)))
        assert {event["ph"] for event in events} <= {"M", "X", "C"}

    def test_a_fold_at_the_end_starts_no_arrows(self, tmp_path: Path) -> None:
        events = trace_of(tmp_path / "trace.json", Plan(Count(9)).fold(Thirds()))
        assert {event["name"] for event in events if event["ph"] in "stf"} == {"source"}

    def test_a_plan_that_is_left_early_has_a_whole_file(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        with start(plan(10**6), trace=path) as running:
            for _ in range(5):
                next(running)
        assert [event for event in json.loads(path.read_text()) if event["name"] == "rest"]

    def test_a_plan_that_fails_has_a_whole_file(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        with (
            pytest.raises(PipelineError, match="ZeroDivisionError"),
            start(Plan(Count(9)).map(lambda x: 1 // (x - 5), name="div"), trace=path) as running,
        ):
            list(running)
        items = [event["args"]["item"] for event in json.loads(path.read_text()) if event["name"] == "div"]
        assert items[:5] == [0, 1, 2, 3, 4]

    def test_a_kill_leaves_a_file_that_a_bracket_completes(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        code = f"""
            import time
            from pipeline import Plan, start
            from tests.pipeline.sources import Count
            def rest(x: int) -> int:
                time.sleep(0.0005)
                return x
            with start(Plan(Count(10**9)).map(rest, width=2), trace={str(path)!r}) as running:
                for number, _ in enumerate(running):
                    if number == 1000:
                        print("going", flush=True)
        """
        with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"going\n"
            child.send_signal(signal.SIGKILL)
        text = path.read_text()
        assert not text.endswith("]\n")
        if not text.endswith("}"):  # a kill may come in the middle of a write
            text = text[: text.rindex(",\n")]
        calls = [event for event in json.loads(text + "]") if event["name"] == "rest"]
        assert len(calls) >= 2 * 256

    def test_one_that_is_never_closed_leaves_no_descriptor(self, tmp_path: Path) -> None:
        gc.collect()
        before = len(list(Path("/proc/self/fd").iterdir()))
        trace = Trace(tmp_path / "trace.json")
        meter = trace.meter("f", 0, HERE)
        meter.call(0, time.perf_counter(), time.perf_counter())
        del trace, meter
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before

    def test_closing_twice_is_closing_once(self, tmp_path: Path) -> None:
        trace = Trace(tmp_path / "trace.json")
        meter = trace.meter("f", 0, HERE)
        trace.close()
        whole = (tmp_path / "trace.json").read_text()
        meter.call(0, time.perf_counter(), time.perf_counter())  # an abandoned thread that comes back
        trace.close()
        assert (tmp_path / "trace.json").read_text() == whole
        json.loads(whole)


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "reason"),
        [("", "Is a directory"), ("none/trace.json", "No such file"), ("file/x", "Not a directory")],
    )
    def test_what_cannot_be_written_is_refused_before_anything_starts(
        self, tmp_path: Path, name: str, reason: str
    ) -> None:
        (tmp_path / "file").write_text("")
        source = Count(3)
        with pytest.raises(PipelineError, match=reason) as raised:
            start(Plan(source), trace=tmp_path / name)
        assert str(tmp_path / name) in str(raised.value)
        assert raised.value.exit_code == 2
        assert isinstance(raised.value.__cause__, OSError)
        assert source.opened == 0

    def test_a_full_disk_does_not_stop_the_plan_and_is_told_at_the_end(self) -> None:
        got: list[int] = []
        with (
            pytest.raises(PipelineError, match=r"trace /dev/full: could not be written whole: No space left"),
            start(Plan(Count(3)), trace="/dev/full") as running,
        ):
            got.extend(item.value for item in running)
        assert got == [0, 1, 2]

    def test_what_was_there_is_gone(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        path.write_text("x" * 100_000)
        assert trace_of(path, Plan(Count(1)))


class TestMeters:
    """What the engine tells a meter, and what is written of it."""

    def test_it_counts_as_any_meter_does(self, tmp_path: Path) -> None:
        trace = Trace(tmp_path / "trace.json")
        meter = trace.meter("f", 0, HERE)
        now = time.perf_counter()
        meter.call(0, now, now + 0.5, 0.25)
        meter.calls(1, 4, now + 1, now + 2)
        meter.starved(2.0)
        meter.blocked(3.0)
        trace.close()
        assert meter.busy_s == pytest.approx(1.25)
        assert (meter.latencies().count, meter.starved_s, meter.blocked_s) == (5, 2.0, 3.0)

    def test_a_wait_for_room_inside_a_call_nests(self, tmp_path: Path) -> None:
        trace = Trace(tmp_path / "trace.json")
        meter = trace.meter("fold", 0, Flow("source", "f", True))
        began = time.perf_counter()
        time.sleep(0.001)
        meter.emitted(0)
        waits = time.perf_counter()
        time.sleep(0.002)
        waited_s = time.perf_counter() - waits
        meter.blocked(waited_s)
        meter.emitted(1)
        meter.call(0, began, time.perf_counter(), waited_s)
        trace.close()
        slices = by_track(json.loads((tmp_path / "trace.json").read_text()), "X")[1]
        assert [each["name"] for each in slices] == ["waits for room", "fold"]
        assert slices[1]["ts"] < slices[0]["ts"]
        assert_nested(slices)

    def test_a_wait_that_is_told_late_does_not_reach_into_the_next_call(self, tmp_path: Path) -> None:
        trace = Trace(tmp_path / "trace.json")
        meter = trace.meter("f", 0, HERE)
        waits = time.perf_counter()
        time.sleep(0.002)
        began = time.perf_counter()
        meter.starved(began - waits)
        meter.call(0, began, time.perf_counter())
        trace.close()
        assert_nested(by_track(json.loads((tmp_path / "trace.json").read_text()), "X")[1])

    def test_short_waits_are_not_shown(self, tmp_path: Path) -> None:
        trace = Trace(tmp_path / "trace.json")
        meter = trace.meter("f", 0, HERE)
        meter.starved(0.9 * SHOWN_WAIT_S)
        meter.blocked(0.9 * SHOWN_WAIT_S)
        trace.close()
        assert not by_track(json.loads((tmp_path / "trace.json").read_text()), "X")

    def test_workers_write_side_by_side_and_hold_little(self, tmp_path: Path) -> None:
        trace = Trace(tmp_path / "trace.json")
        meters = [trace.meter("f", number, HERE) for number in range(3)]
        calls = 2000

        def work(number: int) -> None:
            for index in range(calls):
                now = time.perf_counter()
                meters[number].call(index, now, now)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        written = (tmp_path / "trace.json").read_text().count('"ph":"X"')
        assert 3 * (calls - 256) <= written <= 3 * calls
        trace.close()
        slices = by_track(json.loads((tmp_path / "trace.json").read_text()), "X")
        assert [len(each) for each in slices.values()] == [calls] * 3
        for each in slices.values():
            assert [event["ts"] for event in each] == sorted(event["ts"] for event in each)

    def test_a_slow_worker_is_written_while_it_goes_on(self, tmp_path: Path) -> None:
        trace = Trace(tmp_path / "trace.json")
        meter = trace.meter("f", 0, HERE)
        now = time.perf_counter()
        meter.call(0, now, now + 0.6)
        assert '"item":0' in (tmp_path / "trace.json").read_text()
        trace.close()


def test_slices_of_blocked_stages_do_not_overlap(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with start(Plan(Count(90), ahead=2).fold(Thirds(), ahead=1), trace=path) as running:
        for _ in running:
            time.sleep(0.0015)  # what the consumer does with an item
    tracks = by_track(json.loads(path.read_text()), "X")
    for slices in tracks.values():
        assert_nested(slices)
    assert "waits for room" in {each["name"] for each in tracks[1]} & {each["name"] for each in tracks[2]}


async def tick(x: int) -> int:
    await asyncio.sleep(0.002)
    return x


def test_concurrent_calls_on_the_loop_have_tracks_of_their_own(tmp_path: Path) -> None:
    events = trace_of(tmp_path / "trace.json", Plan(Count(40)).map(tick, width=4))
    ticks = [event for event in events if event["name"] == "tick"]
    assert len({event["tid"] for event in ticks}) == 4
    for slices in by_track(events, "X").values():
        assert_nested(slices)


def test_a_trace_changes_no_output(tmp_path: Path) -> None:
    with start(plan()) as running:
        plain: list[Item[int]] = list(running)
    with start(plan(), trace=tmp_path / "trace.json") as running:
        assert list(running) == plain
