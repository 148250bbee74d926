"""What the tests have called in worker processes; imports little, since each worker imports it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np


def same(value: object) -> object:
    return value


def double(value: int) -> int:
    return 2 * value


def ones(count: int) -> np.ndarray:
    return np.ones(count, np.uint8)


def plus_one(array: np.ndarray) -> np.ndarray:
    return array + 1


def surroundings(_: object) -> tuple[str, list[str], list[str]]:
    return str(Path.cwd()), sys.path, sys.argv


class Counting:
    """Gives how often it has been called, and raises for None."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: object) -> int:
        self.calls += 1
        if value is None:
            raise ValueError("None")
        return self.calls


class KeepingInputs:
    """Keeps every array it is given; for None, what the sums of all of them are now."""

    def __init__(self) -> None:
        self.kept: list[np.ndarray] = []

    def __call__(self, array: np.ndarray | None) -> list[int]:
        if array is None:
            return [int(kept.sum()) for kept in self.kept]
        self.kept.append(array)
        return []


class ReusingOutput:
    """Fills and gives the same array each time."""

    def __init__(self) -> None:
        self.array = np.zeros(100_000, np.uint8)

    def __call__(self, value: int) -> np.ndarray:
        self.array[:] = value
        return self.array


class TwoArguments(Exception):
    """Pickles, but does not unpickle."""

    def __init__(self, file: str, row: int) -> None:
        super().__init__(f"{file}:{row}")
        self.provenance = f"{file}, row {row}"
        self.exit_code = 2


class Traced(Exception):
    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.provenance = "a.jsonl, row 7"


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


class Forgetful(Exception):
    """Unpickles, to something else."""

    def __init__(self, first: str, second: str = "") -> None:
        super().__init__(f"<{first}{second}>")


def raises(kind: str) -> object:
    if kind == "two arguments":
        raise TwoArguments("a.jsonl", 7)
    if kind == "unpicklable attribute":
        error = ValueError("it holds a lambda")
        error.held = lambda: None  # type: ignore[attr-defined]
        raise error
    if kind == "speechless":
        raise Speechless
    if kind == "forgetful":
        raise Forgetful("one", "two")
    if kind == "exit":
        sys.exit(3)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "stop iteration":
        raise StopIteration("over")
    if kind == "local class":

        class Local(Exception):
            pass

        raise Local("only here")
    if kind == "traced":
        raise Traced("a bad row")
    if kind == "unpicklable result":
        return lambda: None
    if kind == "result that does not unpickle":
        return NotHere()
    if kind == "fine":
        return kind
    raise AssertionError(kind)


def _refuse() -> NoReturn:
    raise ValueError("not to be unpickled")


class NotHere:
    def __reduce__(self) -> tuple[Callable[[], NoReturn], tuple[()]]:
        return _refuse, ()


def ends(how: str) -> object:
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "SIGSEGV":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.string_at(0)
    if how == "exit code 3":
        os._exit(3)
    if how == "closed":
        os.closerange(3, 256)
        signal.pause()
    return how


def fork(_: object) -> int:
    """A child that has everything open that the worker has, and does nothing."""
    pid = os.fork()
    while pid == 0:
        signal.pause()
    return pid


def meet(rendezvous: tuple[Path, Path]) -> str:
    """Says that the call has begun, and waits to be let go: opening a FIFO waits for the other side."""
    begun, leave = rendezvous
    begun.write_bytes(b"")
    leave.read_bytes()
    return "left"


def run_out_of_descriptors(value: object) -> object:
    if value == "now":
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))  # below which all are taken
        return None
    return value


def unpickles_nowhere() -> NotHere:
    return NotHere()
