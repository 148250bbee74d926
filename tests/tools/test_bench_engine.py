"""The engine's bench: every side gives the same values in order, is measured, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from select import select

import pytest

from tools.bench.engine import contest, stamps, workloads
from tools.bench.engine.grouping import groups
from tools.bench.engine.measuring import Consumer, WrongValue
from tools.bench.engine.session import SideFailed, session
from tools.bench.rounds import run_rounds, to_json
from tools.bench.sides import Settings

WORKLOADS = workloads.workloads(2)
CASES = [
    (side, name)
    for name in ("tiny-chain-wide", "arrays-1m")
    for side in ("headrace", "limit", "queue", *contest.PEERS)
    if contest.takes(side, WORKLOADS[name])
]


@pytest.mark.parametrize(("side", "name"), CASES)
def test_every_side_gives_the_same_values_in_order(side: str, name: str) -> None:
    workload = WORKLOADS[name]
    with session(side, workload) as live:
        given = live.first + live.take(8)
        seen = live.read(warm_s=0, seconds=0.01)
    assert given == [workload.expected(index) for index in range(9 * workload.stride)]
    assert seen.items >= workload.stride
    assert seen.seconds > 0
    assert 0 < seen.p50_us <= seen.p99_us
    assert live.start_s > 0


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_a_workload_is_what_it_expects(workload: workloads.Workload) -> None:
    for index in (0, 1, 1000):
        (number,) = workload.numbers(iter([workload.apply(index)]))
        assert number == workload.expected(index)
    assert workload.stride % workload.group == 0 or workload.group % workload.stride == 0


def test_ratios_and_what_a_hand_off_costs_are_given_for_each_workload(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = {name: WORKLOADS[name] for name in ("tiny", "cpu-200us")}
    monkeypatch.setattr(contest, "workloads", lambda width: chosen)
    monkeypatch.setattr(contest, "sides", lambda: ["headrace", "limit", "queue"])
    monkeypatch.setattr(contest, "WARM_S", 0.0)
    monkeypatch.setattr(contest, "READ_S", 0.02)
    with contest.bench(Settings(tmp_path, workers=2)) as given:
        done = to_json([run_rounds("engine", sides, 1, lambda side, seen: None) for sides in given])
    ratios, figures = done["ratios"], done["figures"]
    assert isinstance(ratios, dict)
    assert isinstance(figures, dict)
    assert set(ratios) == {
        *("headrace/limit", "headrace/queue", "tiny/headrace/limit", "tiny/headrace/queue"),
        "cpu-200us/headrace/limit",
    }
    assert ratios["headrace/queue"] == ratios["tiny/headrace/queue"]
    assert figures["tiny/headrace.handoff_us"] == pytest.approx(
        1e6 / figures["tiny/headrace"] - 1e6 / figures["tiny/limit"]
    )
    assert {"tiny/queue.p50_us", "tiny/queue.p99_us", "tiny/queue.cpu_us", "tiny/queue.start_s"} < set(
        figures
    )


def test_a_value_in_the_wrong_place_is_an_error(tmp_path: Path) -> None:
    workload = WORKLOADS["tiny"]
    stamped = stamps.Stamps(tmp_path / "stamps", workload.stride)
    right: Iterator[object] = map(workload.apply, stamps.indices(stamped))
    assert Consumer(right, workload, stamped).read(0, 0.001).items
    with pytest.raises(WrongValue, match="tiny: item 0 is 7, expected 1"):
        Consumer(count(7), workload, stamped).read(0, 0.001)


def test_groups_stamp_what_is_in_them(tmp_path: Path) -> None:
    for size in (2, 8, 32):
        stamped = stamps.Stamps(tmp_path / str(size), 8)
        given = groups(stamped, size)
        assert [number for _ in range(32 // size) for number in next(given)] == list(range(32))
        assert 0 < stamped.given(0) <= stamped.given(8) <= stamped.given(16) <= stamped.given(24)
        assert not stamped.given(size + 32)


def test_a_side_that_fails_says_why_and_leaves_no_process() -> None:
    with pytest.raises(SideFailed, match=r"(?s)tiny: nobody ended with exit code 1.*No module named"):  # noqa: SIM117
        with session("nobody", WORKLOADS["tiny"]):
            pass


def test_its_processes_end_with_the_block() -> None:
    with session("headrace", WORKLOADS["cpu-200us"]) as live:
        processes = [os.pidfd_open(process) for process in members(live.process.pid)]
    assert len(processes) > 2
    for process in processes:
        assert select([process], [], [], 5.0)[0], "still alive after 5 s"
        os.close(process)


def members(group: int) -> list[int]:
    """The processes of a process group."""
    stats = [path.read_text("utf-8") for path in Path("/proc").glob("[0-9]*/stat")]
    return [int(stat.split()[0]) for stat in stats if int(stat.rpartition(")")[2].split()[2]) == group]


def test_a_peer_that_is_not_installed_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contest, "find_spec", lambda name: None if name in {"spdl", "grain"} else object())
    assert contest.sides() == ["headrace", "limit", "queue", "torchdata", "torchdata-prebatch", "dataloader"]
    assert "grain, spdl" in capsys.readouterr().err
