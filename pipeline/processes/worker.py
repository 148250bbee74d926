"""A worker process as its parent sees it."""

from __future__ import annotations

import array
import contextlib
import marshal
import multiprocessing
import multiprocessing.process
import multiprocessing.spawn
import multiprocessing.util
import os
import pickle
import select
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

from .channel import LEND_BYTES, Batch, Channel
from .errors import (
    NotPicklable,
    SharedMemoryFailed,
    UnguardedMain,
    WorkerClosed,
    WorkerDied,
    WorkerNotStarted,
)
from .outcomes import Failure, Raised, Reply, Returned

_ENDING_S = 5.0
"""How long a process that has closed its end of the channel has to end before it is killed."""

# marshal is built in: no module of a working directory can take its place before the parent's path is set.
_BOOTSTRAP = """\
import marshal, sys
setup = open({setup}, "rb")
sys.path[:] = marshal.load(setup)
from pipeline.processes.child import main
main(setup, {channel}, {parent})
"""


class Worker:
    """One process that calls one function; driven by one thread, closed and killed from any.

    `send` and `receive` are in step: each batch that is sent is received once, in order, with at most two in
    between. Nothing that happens to the process makes either wait for ever: `receive` raises `WorkerDied`.
    """

    def __init__(self, name: str, function: bytes, *, lend_bytes: int = LEND_BYTES) -> None:
        """Start a process for `function`, a pickled callable; returns at once, before anything is imported there.

        `name`: of the process, in errors. `lend_bytes`: how much shared memory the arguments that the function
        keeps, and the results that are kept here, may occupy, each; above that they are copied.

        UnguardedMain: this is a worker that imports the script. WorkerNotStarted: no process could be started.
        """
        self.name = name
        self._refused: deque[NotPicklable | SharedMemoryFailed | None] = deque()
        self._closed = False
        self._joined = False
        self._driving = threading.Lock()
        self._joining = threading.Lock()
        self._ending = threading.Lock()
        with contextlib.ExitStack() as undo:
            try:
                self._start(name, function, lend_bytes, undo)
            except OSError as error:
                raise WorkerNotStarted(f"worker process '{name}' could not be started: {error}") from error
            undo.pop_all()

    def send(self, values: Sequence[object]) -> None:
        """Have the function called on each of `values`, one after the other.

        A value that cannot be pickled is not sent, nor are those after it: `receive` tells, in its place.
        A worker that died is told by `receive`. WorkerClosed: `close` was called.
        """
        with self._driving:
            self._check_open()
            refused: NotPicklable | SharedMemoryFailed | None = None
            try:
                for value in values:
                    self._channel.add(value)
            except (NotPicklable, SharedMemoryFailed) as error:
                refused = error
            self._refused.append(refused)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):
                self._channel.send(None)
            self._check_open()

    def receive(self) -> list[Returned | Raised]:
        """The outcomes of the oldest batch sent, in order. Waits for it.

        They end after a `Raised`: the values after it have no effect, as if they had not been sent.

        WorkerDied: the process is gone. WorkerNotStarted: it could not load the function. WorkerClosed: `close`
        was called. SharedMemoryFailed: no results, the worker is of no use any more.
        """
        with self._driving:
            self._check_open()
            try:
                batch = self._channel.receive()
            except EOFError:
                self._check_open()
                raise self._died() from None
            if isinstance(batch.tail, Failure):
                raise self._useless(batch.tail)
            assert isinstance(batch.tail, Reply)
            outcomes = self._outcomes(batch, batch.tail)
            refused = self._refused.popleft()
        if refused is not None and not (outcomes and isinstance(outcomes[-1], Raised)):
            now = time.perf_counter()
            outcomes.append(Raised(refused, now, now, 0.0))
        return outcomes

    def close(self) -> None:
        """Let the process end: at once if it is idle, after the call that it is in if not.

        `send` and `receive` raise WorkerClosed from now on, also where they wait. From any thread, repeatedly.
        """
        with self._ending:
            self._closed = True
            if not self._joined:
                with contextlib.suppress(OSError):  # the process is gone, and its end with it
                    self._socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Send SIGKILL. From any thread, repeatedly."""
        with self._ending:
            if not self._joined:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def join(self, timeout_s: float) -> bool:
        """Wait for the process to end and give everything of it back. True when that is done.

        It neither closes nor kills. From any thread, repeatedly. Results that are kept stay valid.
        """
        deadline = time.monotonic() + timeout_s
        if not self._joining.acquire(timeout=timeout_s):
            return False
        try:
            if self._joined:
                return True
            if not self._has_ended(timeout_s):
                return False
            if not self._driving.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return False
            try:
                self._give_back()
            finally:
                self._driving.release()
        finally:
            self._joining.release()
        return True

    def _start(self, name: str, function: bytes, lend_bytes: int, undo: contextlib.ExitStack) -> None:
        preparation = _preparation(name)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(self._socket.close)
        with theirs, _setup(preparation, lend_bytes, function) as setup, _own_pidfd() as parent:
            code = _BOOTSTRAP.format(setup=setup, channel=theirs.fileno(), parent=parent)
            with _interrupts_held():
                self._process = subprocess.Popen(
                    [multiprocessing.spawn.get_executable(), *_interpreter_flags(), "-c", code],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(setup, theirs.fileno(), parent),
                )
        undo.callback(self._process.wait)
        undo.callback(self._process.kill)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._socket.setblocking(False)
        self._channel = Channel(self._socket, self._wait, lend_bytes)
        self._pollers = {event: select.poll() for event in (select.POLLIN, select.POLLOUT)}
        for event, poller in self._pollers.items():
            poller.register(self._socket, event)
            poller.register(self._pidfd, select.POLLIN)

    def _wait(self, event: int) -> None:
        # The end of the channel does not tell of a death where the worker's own children have inherited it.
        poller, channel = self._pollers[event], self._socket.fileno()
        if all(fd != channel for fd, _ in poller.poll()) and all(fd != channel for fd, _ in poller.poll(0)):
            raise EOFError

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerClosed(f"worker process '{self.name}' was closed")

    def _outcomes(self, batch: Batch, reply: Reply) -> list[Returned | Raised]:
        times = array.array("d", reply.times)
        began, ended = times[::2], times[1::2]
        cpu_s = reply.cpu_s / max(1, len(began))
        outcomes: list[Returned | Raised] = []
        with contextlib.closing(self._channel.values(batch)) as values:
            try:
                for value in values:
                    number = len(outcomes)
                    outcomes.append(Returned(value, began[number], ended[number], cpu_s))
            except NotPicklable as error:
                number = len(outcomes)
                outcomes.append(Raised(error, began[number], ended[number], cpu_s))
                return outcomes
        if reply.failure is not None:
            outcomes.append(Raised(reply.failure.error(), began[-1], ended[-1], cpu_s))
        return outcomes

    def _useless(self, failure: Failure) -> BaseException:
        original = failure.error()
        if isinstance(original, SharedMemoryFailed):
            return original
        error = WorkerNotStarted(
            f"worker process '{self.name}' (pid {self.pid}) could not load the function: "
            f"{failure.kind}: {failure.message}"
        )
        if failure.exit_code is not None:
            error.exit_code = failure.exit_code
        error.__cause__ = original
        return error

    def _died(self) -> WorkerDied:
        if not self._has_ended(_ENDING_S):
            self.kill()
            self._process.wait()
            return WorkerDied(self.name, self.pid, "closed its channel without ending, and was killed")
        return WorkerDied(self.name, self.pid, _ending(self._process.wait()))

    def _has_ended(self, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(max(0.0, timeout_s) * 1000))

    def _give_back(self) -> None:
        with self._ending:
            self._process.wait()
            self._channel.close()
            os.close(self._pidfd)
            self._closed = self._joined = True


_starting = threading.Lock()


def _preparation(name: str) -> dict[str, object]:
    """What a new process needs to import what this one has: the standard library's own answer."""
    if vars(multiprocessing.process.current_process()).get("_inheriting"):
        raise UnguardedMain(
            f"worker process '{name}': the script that starts it was just being imported by a worker process, "
            "which needs the functions that it defines. "
            "Put what the script does under \"if __name__ == '__main__':\""
        )
    with _starting:
        chosen = multiprocessing.get_start_method(allow_none=True)
        preparation: dict[str, object] = multiprocessing.spawn.get_preparation_data(name)
        if not chosen:
            # Being asked for, the default was fixed: without this, the program could not choose any more.
            multiprocessing.set_start_method(None, force=True)
            del preparation["start_method"]
    preparation["authkey"] = bytes(
        multiprocessing.process.current_process().authkey
    )  # it refuses to be pickled
    return preparation


def _interpreter_flags() -> list[str]:
    flags: list[str] = multiprocessing.util._args_from_interpreter_flags()  # type: ignore[attr-defined]  # not in its stub
    return flags


@contextlib.contextmanager
def _setup(preparation: dict[str, object], lend_bytes: int, function: bytes) -> Iterator[int]:
    """A descriptor from which the process reads all that it starts with, of any length."""
    with open(os.memfd_create("headrace-setup"), "wb") as setup:  # noqa: PTH123 - a descriptor
        paths = preparation["sys_path"]
        assert isinstance(paths, list)
        marshal.dump([path for path in paths if isinstance(path, str)], setup)
        pickle.dump((preparation, lend_bytes), setup, protocol=5)
        setup.write(function)
        setup.flush()
        os.lseek(setup.fileno(), 0, os.SEEK_SET)
        yield setup.fileno()


@contextlib.contextmanager
def _own_pidfd() -> Iterator[int]:
    fd = os.pidfd_open(os.getpid())
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process that is started now cannot be hit by Ctrl-C before it has come to ignoring it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ": by hand, or for lack of memory (see the kernel's log)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
