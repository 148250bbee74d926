"""Maps in worker processes, in plans: the ends that they can come to, and what of an error reaches the consumer."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline import Drop, Dropped, Plan, Retry, StageFailed, TimeLimit, WorkerDied, start
from tests.contracts.engine import ListSource
from tests.pipeline.sources import Count

ROOT = Path(__file__).parents[2]


class TwoArguments(Exception):
    """Cannot be rebuilt from its message."""

    exit_code = 2

    def __init__(self, path: str, row: int) -> None:
        super().__init__(f"{path} is broken in row {row}")
        self.provenance = f"{path}:{row}"


class Unpicklable(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.held = lambda: None


def triple(x: int) -> int:
    return 3 * x


def fails_in_row_7(x: int) -> int:
    if x == 7:
        raise TwoArguments("corpus.jsonl", 7)
    return x


def fails_unpicklably(x: int) -> int:
    if x == 7:
        raise Unpicklable("cannot travel")
    return x


def fails_when_odd(x: int) -> int:
    if x % 2:
        raise ValueError(f"{x} is odd")
    return x


def dies(x: int) -> int:
    if x == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def never_returns(x: int) -> int:
    while x == 7:
        time.sleep(60)
    return x


def returns_a_lambda(x: int) -> object:
    return (lambda: x) if x == 7 else x


def plus_one(array: NDArray[np.float64]) -> NDArray[np.float64]:
    return array + 1


class FailsTwice:
    """A transient error, told apart over calls by a file for each attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, x: int) -> int:
        if x == 7:
            attempts = len(list(self.folder.iterdir()))
            if attempts < 2:
                (self.folder / str(attempts)).touch()
                raise ConnectionResetError("reset by peer")
        return x


def _load() -> Unloadable:
    raise ImportError("no such library here")


class Unloadable:
    """Pickles, but does not unpickle."""

    def __call__(self, x: int) -> int:
        return x

    def __reduce__(self) -> tuple[object, ...]:
        return _load, ()


class Records(list[Dropped]):
    def put(self, record: Dropped) -> None:
        self.append(record)


def run_out(plan: Plan[int]) -> tuple[list[int], StageFailed]:
    values = []
    with start(plan) as running:
        try:
            for item in running:
                values.append(item.value)
        except StageFailed as failure:
            return values, failure
    raise AssertionError(f"no failure after {values}")


@pytest.mark.parametrize("width", [1, 2, 3])
def test_order_and_states_at_every_width(width: int) -> None:
    with start(Plan(Count(200)).map(triple, on="process", width=width)) as running:
        assert [(item.value, item.resume) for item in running] == [
            (3 * i, {"next": i + 1}) for i in range(200)
        ]


def test_arrays_arrive_whole_and_stay_as_they_are() -> None:
    """More of them are kept than shared memory is lent for, beside small ones that travel in the message."""
    arrays = [np.full(1 + 300_000 * (i % 3), i, dtype=np.float64) for i in range(60)]
    plan = Plan(ListSource([*arrays])).map(plus_one, on="process", width=2)
    with start(plan) as running:
        kept = [item.value for item in running]
    for before, after in zip(arrays, kept, strict=True):
        assert np.array_equal(after, before + 1)


@pytest.mark.parametrize("place", ["thread", "process"])
def test_error_keeps_its_origin(place: str) -> None:
    """Class, message, traceback, stage, file and row are all visible; never a TypeError instead."""
    values, failure = run_out(Plan(Count(20)).map(fails_in_row_7, on=place, width=2, name="parse"))
    assert values == list(range(7))
    # From a process comes a stand-in: the class cannot be built from what it was pickled with.
    stand_in = "" if place == "thread" else f"RemoteError: {__name__}."
    assert str(failure) == (
        f"stage 'parse' failed at item 7 (corpus.jsonl:7): {stand_in}TwoArguments: corpus.jsonl is broken in row 7"
    )
    assert (failure.stage, failure.index, failure.provenance, failure.exit_code) == (
        "parse",
        7,
        "corpus.jsonl:7",
        2,
    )
    shown = "".join(traceback.format_exception(failure))
    assert "TwoArguments" in failure.reason
    assert "corpus.jsonl is broken in row 7" in failure.reason
    assert "in fails_in_row_7" in shown
    assert 'raise TwoArguments("corpus.jsonl", 7)' in shown


def test_an_exception_that_does_not_pickle() -> None:
    values, failure = run_out(Plan(Count(20)).map(fails_unpicklably, on="process", width=2))
    assert values == list(range(7))
    assert "Unpicklable" in failure.reason
    assert "cannot travel" in failure.reason
    assert "in fails_unpicklably" in "".join(traceback.format_exception(failure))


def test_a_result_that_does_not_pickle() -> None:
    values, failure = run_out(Plan(Count(20)).map(returns_a_lambda, on="process"))
    assert values == list(range(7))
    assert "function" in failure.reason


@pytest.mark.parametrize("width", [1, 2])
def test_a_killed_worker_is_an_error_that_names_its_stage(width: int) -> None:
    values, failure = run_out(Plan(Count(20)).map(dies, on="process", width=width))
    assert values == list(range(len(values)))
    assert len(values) <= 7
    assert (failure.stage, failure.index) == ("dies", len(values))
    assert isinstance(failure.__cause__, WorkerDied)
    assert "SIGKILL" in failure.reason


def test_a_killed_worker_is_no_reason_to_drop() -> None:
    records = Records()
    _, failure = run_out(Plan(Count(20)).map(dies, on="process", on_error=Drop(records, at_most=9)))
    assert isinstance(failure.__cause__, WorkerDied)
    assert not records


def test_a_call_over_its_time_limit() -> None:
    values, failure = run_out(Plan(Count(20)).map(never_returns, on="process", width=2, time_limit_s=0.5))
    assert values == list(range(7))
    assert isinstance(failure.__cause__, TimeLimit)
    assert failure.reason == "TimeLimit: the call did not return within 0.5 s; its process was killed"


def test_a_call_over_its_time_limit_is_dropped_where_asked() -> None:
    records = Records()
    plan = Plan(Count(20)).map(
        never_returns, on="process", width=2, time_limit_s=0.5, on_error=Drop(records, at_most=1)
    )
    with start(plan) as running:
        assert [item.value for item in running] == [i for i in range(20) if i != 7]
    assert [record.value for record in records] == [7]


@pytest.mark.parametrize("width", [1, 2])
def test_dropped_in_order(width: int) -> None:
    records = Records()
    plan = Plan(Count(60)).map(fails_when_odd, on="process", width=width, on_error=Drop(records, at_most=30))
    with start(plan) as running:
        items = list(running)
        assert running.stats().stage("fails_when_odd").dropped == 30
    assert [item.value for item in items] == list(range(0, 60, 2))
    assert items[-1].resume == {"source": {"next": 59}, "stages": {"fails_when_odd": 29}}
    assert [record.value for record in records] == list(range(1, 60, 2))
    assert "in fails_when_odd" in "".join(traceback.format_exception(records[0].failure))


def test_transient_errors_are_tried_again(tmp_path: Path) -> None:
    retry = Retry(on=(ConnectionResetError,), attempts=3, first_s=0.0)
    with start(Plan(Count(20)).map(FailsTwice(tmp_path), on="process", retry=retry)) as running:
        assert [item.value for item in running] == list(range(20))
        assert running.stats().stage("FailsTwice").retried == 2


def test_a_function_that_does_not_pickle_is_refused_with_the_plan() -> None:
    with pytest.raises(ValueError, match="a function for processes must pickle"):
        Plan(Count(3)).map(lambda x: x, on="process", name="double")


def test_a_function_that_cannot_be_imported_there() -> None:
    values, failure = run_out(Plan(Count(3)).map(Unloadable(), on="process"))
    assert values == []
    assert "ImportError: no such library here" in str(failure)
    assert failure.exit_code == 2


_KILLED = """
import os, sys
from pipeline import Plan, start
from tests.pipeline.sources import Count
from tests.pipeline.test_process_maps import never_returns

running = start(Plan(Count(9)).map(never_returns, on="process", width=2))
next(running)
children = set()
while len(children) < 2:
    for task in os.listdir("/proc/self/task"):
        children.update(open(f"/proc/self/task/{task}/children").read().split())
print(*children, flush=True)
sys.stdin.read()
"""


def test_killed_rank_restarts() -> None:
    """SIGKILL to a process with workers, one of them in a call: they end, nothing is left, and a new one starts."""
    shared_before = set(Path("/dev/shm").iterdir())
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", _KILLED],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            workers = [int(pid) for pid in process.stdout.readline().split()]
            assert len(workers) == 2
            ends = [os.pidfd_open(pid) for pid in workers]
            process.kill()
        for end in ends:
            poll = select.poll()
            poll.register(end, select.POLLIN)
            assert poll.poll(10_000), "a worker outlives its parent"
            os.close(end)
    assert set(Path("/dev/shm").iterdir()) <= shared_before


_LEFT = """
import sys
from pipeline import Plan, start
from tests.pipeline.sources import Count
from tests.pipeline.test_process_maps import never_returns, triple

state = sys.argv[1]
running = start(Plan(Count(10**6)).map(never_returns if state == "calling" else triple, on="process", width=2))
if state != "starting":
    next(running)
if state == "dropped":
    del running
print("done")
"""


@pytest.mark.parametrize("state", ["starting", "waiting", "calling", "dropped"])
def test_interpreter_exits_with_the_processes_alive(state: str) -> None:
    """No hang, no process left that holds the output open, and nothing on stderr, where warnings are shown."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", _LEFT, state],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
