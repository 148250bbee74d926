"""Worker processes: what comes back, from whom an error is, and that no end of theirs is a hang."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import PipelineError
from pipeline.processes import (
    NotPicklable,
    Raised,
    RemoteError,
    RemoteTraceback,
    Returned,
    SharedMemoryFailed,
    Worker,
    WorkerClosed,
    WorkerDied,
    WorkerNotStarted,
)
from tests.pipeline import process_functions as functions

ROOT = Path(__file__).parents[2]
LONG_S = 30.0
MIB = 1 << 20

Start = Callable[..., Worker]


def end(worker: Worker) -> None:
    worker.close()
    if not worker.join(LONG_S):
        worker.kill()
        assert worker.join(LONG_S)
        pytest.fail("an idle worker did not end when it was closed")


def shared_bytes(pid: int | str = "self") -> int:
    """Shared memory that the process has mapped."""
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text("utf-8").splitlines():
        if "memfd:headrace" in line:
            first, last = line.split()[0].split("-")
            total += int(last, 16) - int(first, 16)
    return total


def descriptors(pid: int | str = "self") -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@pytest.fixture
def start() -> Iterator[Start]:
    workers: list[Worker] = []

    def started(function: object, **options: int) -> Worker:
        workers.append(Worker("stage-0", pickle.dumps(function), **options))
        return workers[-1]

    yield started
    for worker in workers:
        end(worker)


@pytest.fixture(scope="module")
def echo() -> Iterator[Worker]:
    worker = Worker("echo", pickle.dumps(functions.same))
    yield worker
    end(worker)


@pytest.fixture(scope="module")
def raiser() -> Iterator[Worker]:
    worker = Worker("raiser", pickle.dumps(functions.raises))
    yield worker
    end(worker)


def call(worker: Worker, *values: object) -> list[object]:
    worker.send(values)
    outcomes = worker.receive()
    assert all(isinstance(outcome, Returned) for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes if isinstance(outcome, Returned)]


def raised(worker: Worker, *values: object) -> BaseException:
    worker.send(values)
    outcome = worker.receive()[-1]
    assert isinstance(outcome, Raised)
    return outcome.error


class TestCalls:
    def test_outcomes_are_in_order_with_the_times_of_each_call(self, start: Start) -> None:
        worker = start(functions.double)
        before = time.perf_counter()
        worker.send(range(5))
        worker.send([10])
        first, second = worker.receive(), worker.receive()
        after = time.perf_counter()
        assert [outcome.value for outcome in first + second if isinstance(outcome, Returned)] == [
            0,
            2,
            4,
            6,
            8,
            20,
        ]
        moments = [moment for outcome in first + second for moment in (outcome.began, outcome.ended)]
        assert [before, *moments, after] == sorted([before, *moments, after])
        assert all(outcome.cpu_s >= 0 for outcome in first)

    def test_an_empty_batch_has_no_outcomes(self, echo: Worker) -> None:
        assert call(echo) == []

    def test_nothing_is_called_after_a_failure(self, start: Start) -> None:
        worker = start(functions.Counting())
        worker.send(["a", None, "b", "c"])
        outcomes = worker.receive()
        assert [type(outcome) for outcome in outcomes] == [Returned, Raised]
        assert call(worker, "d") == [3]

    def test_a_worker_is_where_its_parent_is(self, start: Start) -> None:
        [place] = call(start(functions.surroundings), None)
        assert place == functions.surroundings(None)

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers()
                | st.floats(allow_nan=False)
                | st.text()
                | st.binary(),
                lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
                max_leaves=20,
            )
        )
    )
    def test_any_value_comes_back_as_it_was(self, echo: Worker, values: list[object]) -> None:
        assert call(echo, *values) == values

    @pytest.mark.parametrize("size", [0, 1, (32 << 10) - 1, 32 << 10, (32 << 10) + 1, 3 * MIB])
    @pytest.mark.parametrize("kind", [bytes, bytearray, str, list, np.uint8])
    def test_any_size_comes_back_as_it_was(self, echo: Worker, kind: object, size: int) -> None:
        data = np.random.default_rng(size).integers(0, 128, size, np.uint8)
        value = {
            bytes: data.tobytes(),
            bytearray: bytearray(data),
            str: data.tobytes().decode(),
            list: data.tolist(),
        }.get(cast("type", kind), data)
        for back in call(echo, value, value):
            assert type(back) is type(value)
            assert len(cast("bytes", back)) == size
            assert np.array_equal(back, value) if kind is np.uint8 else back == value  # type: ignore[arg-type]

    def test_a_batch_may_be_larger_than_a_message(self, echo: Worker) -> None:
        values = [[number] * 1000 for number in range(1000)]
        assert call(echo, *values) == values

    def test_a_batch_may_need_more_segments_than_a_message_can_introduce(self, echo: Worker) -> None:
        values = [np.full(40_000, number, np.uint16) for number in range(300)]
        assert all(map(np.array_equal, cast("list[np.ndarray]", call(echo, *values)), values))

    def test_sending_does_not_wait_for_a_worker_that_is_busy(self, start: Start, tmp_path: Path) -> None:
        begun, leave = fifos(tmp_path)
        worker = start(functions.meet)
        worker.send([(begun, leave)])
        begun.read_bytes()
        worker.send([b"x" * 10_000 for _ in range(1000)])
        leave.write_bytes(b"")
        [outcome] = worker.receive()
        assert isinstance(outcome, Returned)
        [outcome] = worker.receive()
        assert isinstance(outcome, Raised)


class TestArrays:
    def test_come_writable_and_aligned_and_whole(self, echo: Worker) -> None:
        for size in (100, 40_000, MIB + 1):
            sent = np.random.default_rng(size).integers(0, 255, size, np.uint8)
            for back in cast("list[dict[str, np.ndarray]]", call(echo, {"a": sent, "b": sent[::-1].copy()})):
                assert np.array_equal(back["a"], sent)
                assert np.array_equal(back["b"], sent[::-1])
                if size >= 40_000:
                    assert back["b"].ctypes.data % 64 == 0
                back["a"][:] = 0
                assert np.array_equal(back["b"], sent[::-1])

    def test_read_only_ones_stay_so(self, echo: Worker) -> None:
        sent = np.zeros(MIB, np.uint8)
        sent.flags.writeable = False
        [back] = cast("list[np.ndarray]", call(echo, sent))
        assert not back.flags.writeable

    def test_a_result_is_what_it_was_when_the_function_returned(self, start: Start) -> None:
        results = cast("list[np.ndarray]", call(start(functions.ReusingOutput()), 1, 2, 3))
        assert [set(result.tolist()) for result in results] == [{1}, {2}, {3}]

    @pytest.mark.parametrize("lend_bytes", [0, 4 * MIB, 64 * MIB])
    def test_results_that_are_kept_never_change_nor_pin_more_than_is_lent(
        self, start: Start, lend_bytes: int
    ) -> None:
        worker = start(functions.plus_one, lend_bytes=lend_bytes)
        kept, before = [], shared_bytes()
        for number in range(40):
            kept += call(worker, np.full(300_000, number, np.uint8))
        assert [set(cast("np.ndarray", array).tolist()) for array in kept] == [{n + 1} for n in range(40)]
        assert shared_bytes() - before <= min(lend_bytes, 40 * MIB // 2) + 3 * MIB

    def test_arguments_that_are_kept_never_change_nor_pin_more_than_is_lent(self, start: Start) -> None:
        worker = start(functions.KeepingInputs(), lend_bytes=4 * MIB)
        for number in range(40):
            call(worker, np.full(300_000, number, np.uint8))
        assert call(worker, None) == [[300_000 * number for number in range(40)]]
        assert shared_bytes(worker.pid) <= 4 * MIB + 3 * MIB

    def test_memory_is_reused_when_nothing_is_kept(self, start: Start) -> None:
        worker, before = start(functions.plus_one), shared_bytes()
        for number in range(100):
            worker.send([np.full(MIB, number, np.uint8)] * 2)
            for outcome in worker.receive():
                assert isinstance(outcome, Returned)
            del outcome
        assert shared_bytes() - before <= 12 * MIB
        assert shared_bytes(worker.pid) <= 12 * MIB

    def test_memory_is_given_up_when_it_is_no_longer_needed(self, start: Start) -> None:
        worker, before = start(functions.same), shared_bytes()
        call(worker, np.zeros(MIB, np.uint8))
        assert shared_bytes() > before
        for _ in range(200):
            call(worker, 0)
        assert shared_bytes() == before
        assert shared_bytes(worker.pid) == 0

    def test_an_argument_is_free_as_soon_as_its_call_is_over(self, start: Start) -> None:
        worker = start(len)
        for _ in range(5):
            call(worker, np.zeros(MIB, np.uint8))
        assert shared_bytes(worker.pid) == MIB

    def test_results_outlive_their_worker(self, start: Start) -> None:
        worker = start(functions.ones)
        [array] = cast("list[np.ndarray]", call(worker, MIB))
        end(worker)
        assert array.sum() == MIB

    def test_descriptors_do_not_pile_up(self, start: Start) -> None:
        worker = start(functions.plus_one)
        call(worker, np.zeros(MIB, np.uint8))
        call(worker, np.zeros(1, np.uint8))
        before = descriptors(), descriptors(worker.pid)
        kept = [call(worker, np.zeros(MIB, np.uint8)) for _ in range(20)]
        call(worker, np.zeros(1, np.uint8))  # before it the worker had closed what it sent last
        assert (descriptors(), descriptors(worker.pid)) == before
        assert len(kept) == 20


class TestErrors:
    @pytest.mark.parametrize(
        ("kind", "original", "message"),
        [
            ("two arguments", None, "tests.pipeline.process_functions.TwoArguments: a.jsonl:7"),
            ("unpicklable attribute", None, "ValueError: it holds a lambda"),
            ("speechless", None, "Speechless: <its message raised RuntimeError>"),
            ("forgetful", None, "Forgetful: <onetwo>"),
            ("local class", None, "Local: only here"),
            ("exit", SystemExit, "3"),
            ("interrupt", KeyboardInterrupt, ""),
            ("stop iteration", StopIteration, "over"),
            ("traced", functions.Traced, "a bad row"),
        ],
    )
    def test_class_message_and_traceback_are_kept(
        self, raiser: Worker, kind: str, original: type[BaseException] | None, message: str
    ) -> None:
        error = raised(raiser, "fine", kind, "fine")
        assert type(error) is (original or RemoteError)
        assert message in str(error)
        assert isinstance(error.__cause__, RemoteTraceback)
        assert "in raises" in str(error.__cause__)
        assert call(raiser, "fine") == ["fine"]

    @pytest.mark.parametrize(
        ("kind", "provenance"), [("two arguments", "a.jsonl, row 7"), ("traced", "a.jsonl, row 7")]
    )
    def test_provenance_and_exit_code_are_kept(self, raiser: Worker, kind: str, provenance: str) -> None:
        error = raised(raiser, kind)
        assert (vars(error)["provenance"], getattr(error, "exit_code", None)) == (provenance, 2)

    def test_a_stand_in_can_itself_be_sent_on(self, raiser: Worker) -> None:
        error = raised(raiser, "two arguments")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)

    @pytest.mark.parametrize("kind", ["unpicklable result", "result that does not unpickle"])
    def test_a_result_that_cannot_come_is_a_failure_of_its_call(self, raiser: Worker, kind: str) -> None:
        raiser.send(["fine", kind, "fine"])
        first, second = raiser.receive()
        assert isinstance(first, Returned)
        assert isinstance(second, Raised)
        assert isinstance(second.error, NotPicklable)
        assert ("function" if kind == "unpicklable result" else "not to be unpickled") in str(second.error)
        assert call(raiser, "fine") == ["fine"]

    @pytest.mark.parametrize("argument", [lambda: None, functions.NotHere()])
    def test_an_argument_that_cannot_go_is_a_failure_in_its_place(
        self, echo: Worker, argument: object
    ) -> None:
        echo.send([1, [2], argument, 3])
        echo.send([4])
        assert [type(outcome) for outcome in echo.receive()] == [Returned, Returned, Raised]
        assert [type(outcome) for outcome in echo.receive()] == [Returned]

    def test_a_failure_before_an_argument_that_cannot_go_comes_first(self, raiser: Worker) -> None:
        error = raised(raiser, "fine", "traced", lambda: None)
        assert isinstance(error, functions.Traced)

    def test_what_a_failed_batch_had_in_shared_memory_is_reused(self, start: Start) -> None:
        worker, before = start(functions.raises), shared_bytes()
        for _ in range(20):
            worker.send(["traced", np.zeros(MIB, np.uint8), np.zeros(MIB, np.uint8)])
            assert isinstance(worker.receive()[-1], Raised)
        assert shared_bytes() - before <= 4 * MIB

    def test_no_memory_for_an_argument_is_a_failure_in_its_place(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: str) -> int:
            raise OSError(24, "Too many open files")

        worker = start(functions.same)
        with monkeypatch.context() as patched:
            patched.setattr("os.memfd_create", refuse)
            worker.send([1, np.zeros(MIB, np.uint8), 2])
            first, second = worker.receive()
        assert isinstance(first, Returned)
        assert isinstance(second, Raised)
        assert isinstance(second.error, SharedMemoryFailed)
        assert "Too many open files" in str(second.error)
        assert call(worker, 3) == [3]

    def test_a_worker_without_descriptors_says_so(self, start: Start) -> None:
        worker = start(functions.run_out_of_descriptors)
        call(worker, "now")
        worker.send([np.zeros(MIB, np.uint8)])
        with pytest.raises(SharedMemoryFailed, match="ulimit -n"):
            worker.receive()


class TestStarting:
    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (b"cno_such_module\nf\n.", "ModuleNotFoundError: No module named 'no_such_module'"),
            (b"cos.path\nno_such_function\n.", "no_such_function"),
            (pickle.dumps(3), "TypeError: not a function: 3"),
            (b"", "EOFError"),
            (pickle.dumps(functions.unpickles_nowhere()), "ValueError: not to be unpickled"),
        ],
    )
    def test_a_function_that_cannot_be_loaded(
        self, function: bytes, message: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        worker = Worker("stage-7", function)
        try:
            worker.send([1])
            with pytest.raises(WorkerNotStarted, match=r"stage-7.*could not load") as caught:
                worker.receive()
        finally:
            end(worker)
        assert capfd.readouterr() == ("", "")
        assert message in str(caught.value)
        assert caught.value.exit_code == 2
        assert caught.value.__cause__ is not None
        assert "in _load" in str(caught.value.__cause__.__cause__)

    def test_no_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = descriptors()
        monkeypatch.setattr("multiprocessing.spawn._python_exe", "/no/such/interpreter")
        with pytest.raises(WorkerNotStarted, match=r"stage-7.*no/such/interpreter"):
            Worker("stage-7", pickle.dumps(functions.same))
        assert descriptors() == before


SCRIPT = """
import multiprocessing, os, pickle, sys
from pathlib import Path
from pipeline.processes import Worker

def triple(value):
    return 3 * value

def meet(paths):
    begun, leave = paths
    begun.write_bytes(b"")
    leave.read_bytes()

def main():
    worker = Worker("stage-0", pickle.dumps({function}))
    {body}
    worker.close()
    print(worker.join(30), multiprocessing.get_start_method(allow_none=True), "numpy" in sys.modules)

{guard}main()
"""


def run_script(path: Path, function: str, body: str, guard: str) -> subprocess.Popen[str]:
    path.write_text(SCRIPT.format(function=function, body=body, guard=guard), "utf-8")
    return subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


GUARD = 'if __name__ == "__main__": '
ASK = "worker.send([2, 5]); print(*[outcome.value for outcome in worker.receive()])"


class TestScripts:
    def test_a_function_of_the_script_itself(self, tmp_path: Path) -> None:
        out, err = run_script(tmp_path / "script.py", "triple", ASK, GUARD).communicate(timeout=LONG_S)
        assert (out.split(), err) == (["6", "15", "True", "None", "False"], "")

    def test_a_script_without_a_guard_is_told_so_and_starts_nothing_more(self, tmp_path: Path) -> None:
        script = run_script(tmp_path / "script.py", "triple", ASK, "")
        _, err = script.communicate(timeout=LONG_S)
        assert script.returncode == 1
        assert "WorkerNotStarted: worker process 'stage-0'" in err
        assert "if __name__ == '__main__':" in err.splitlines()[-1]

    def test_a_worker_dies_with_its_parent_even_inside_a_call(self, tmp_path: Path) -> None:
        begun, leave = fifos(tmp_path)
        paths = f"(Path({str(begun)!r}), Path({str(leave)!r}))"
        body = f"print(worker.pid, flush=True); worker.send([{paths}]); worker.receive()"
        script = run_script(tmp_path / "script.py", "meet", body, GUARD)
        with script:
            assert script.stdout is not None
            pid = int(script.stdout.readline())
            worker = os.pidfd_open(pid)
            begun.read_bytes()
            script.kill()
        try:
            assert ended(worker)
        finally:
            os.close(worker)

    def test_a_worker_whose_parent_died_before_it_started(self, tmp_path: Path) -> None:
        body = "print(worker.pid, flush=True); os._exit(0)"
        script = run_script(tmp_path / "script.py", "meet", body, GUARD)
        out, _ = script.communicate(timeout=LONG_S)  # ends only when the worker has closed its copies too
        assert int(out) > 0


def fifos(folder: Path) -> tuple[Path, Path]:
    begun, leave = folder / "begun", folder / "leave"
    os.mkfifo(begun)
    os.mkfifo(leave)
    return begun, leave


def ended(pidfd: int, timeout_s: float = LONG_S) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


class TestEnds:
    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ("SIGKILL", "was killed by SIGKILL"),
            ("SIGSEGV", "was killed by SIGSEGV"),
            ("exit code 3", "ended with exit code 3"),
        ],
    )
    def test_what_came_before_a_death_is_delivered_and_then_the_death(
        self, start: Start, how: str, message: str
    ) -> None:
        worker = start(functions.ends)
        worker.send(["a", "b"])
        worker.send([how, "c"])
        assert len(worker.receive()) == 2
        with pytest.raises(WorkerDied, match=f"stage-0.*pid {worker.pid}.*{message}") as caught:
            worker.receive()
        assert (caught.value.name, caught.value.pid, caught.value.exit_code) == ("stage-0", worker.pid, 1)
        assert issubclass(WorkerDied, PipelineError)
        worker.send(["d"])
        with pytest.raises(WorkerDied):
            worker.receive()

    def test_what_was_sent_before_a_death_is_read_after_it(self, start: Start) -> None:
        worker = start(functions.ends)
        worker.send(["a", "b"])
        worker.send(["SIGKILL"])
        worker.send(["never read"])
        watch = os.pidfd_open(worker.pid)
        try:
            assert ended(watch)
        finally:
            os.close(watch)
        assert len(worker.receive()) == 2
        with pytest.raises(WorkerDied):
            worker.receive()

    def test_a_worker_killed_from_outside_while_it_is_waited_for(self, start: Start, tmp_path: Path) -> None:
        begun, leave = fifos(tmp_path)
        worker = start(functions.meet)
        worker.send([(begun, leave)])
        begun.read_bytes()
        worker.kill()
        with pytest.raises(WorkerDied, match="SIGKILL"):
            worker.receive()

    def test_a_death_is_noticed_where_a_child_of_the_worker_lives_on(self, start: Start) -> None:
        worker = start(functions.fork)
        [orphan] = call(worker, None)
        try:
            worker.kill()
            with pytest.raises(WorkerDied):
                worker.receive()
        finally:
            os.kill(cast("int", orphan), signal.SIGKILL)

    def test_a_worker_that_loses_its_channel_is_killed(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pipeline.processes.worker._ENDING_S", 0.01)
        worker = start(functions.ends)
        worker.send(["closed"])
        with pytest.raises(WorkerDied, match="closed its channel"):
            worker.receive()

    def test_interrupts_are_left_to_the_parent(self, start: Start) -> None:
        worker = start(functions.double)
        os.kill(worker.pid, signal.SIGINT)  # long before it could have come to ignoring it
        assert call(worker, 1) == [2]
        os.kill(worker.pid, signal.SIGINT)
        assert call(worker, 2) == [4]

    def test_closing_wakes_who_waits(self, start: Start, tmp_path: Path) -> None:
        begun, leave = fifos(tmp_path)
        worker = start(functions.meet)
        worker.send([(begun, leave)])
        begun.read_bytes()
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                worker.receive()
            except PipelineError as error:
                caught.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        worker.close()
        worker.close()
        waiting.join(LONG_S)
        assert [type(error) for error in caught] == [WorkerClosed]
        assert not worker.join(0), "it is still inside its call"
        leave.write_bytes(b"")
        assert worker.join(LONG_S)
        assert worker.join(0)
        for blocked in (worker.receive, lambda: worker.send([1])):
            with pytest.raises(WorkerClosed, match="stage-0"):
                blocked()
        worker.kill()
        worker.close()

    @pytest.mark.parametrize("finish", ["close", "kill", "both at once", "at once"])
    def test_nothing_is_left(self, finish: str) -> None:
        def resources() -> tuple[int, int, int]:
            return descriptors(), threading.active_count(), shared_bytes()

        before = resources()
        worker = Worker("stage-0", pickle.dumps(functions.plus_one))
        if finish != "at once":
            call(worker, np.zeros(MIB, np.uint8))
            worker.send([np.zeros(MIB, np.uint8)])
        if finish in ("kill", "both at once"):
            worker.kill()
        if finish != "kill":
            worker.close()
        assert worker.join(LONG_S)
        assert resources() == before
        with pytest.raises(ChildProcessError):
            os.waitpid(worker.pid, os.WNOHANG)
