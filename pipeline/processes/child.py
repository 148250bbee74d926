"""What runs in a worker process."""

from __future__ import annotations

import array
import atexit
import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import current_process
from multiprocessing.spawn import prepare
from time import perf_counter, process_time
from typing import BinaryIO, NoReturn

from .channel import Batch, Channel
from .errors import SharedMemoryFailed
from .outcomes import Failure, Reply


def main(setup: BinaryIO, channel_fd: int, parent_fd: int) -> NoReturn:
    """Load the function that `setup` holds and answer batches, until the parent closes the channel or dies.

    `parent_fd`: a pidfd of the parent, so that one that is dead already is noticed too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a terminal sends it to both
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for fd in (channel_fd, parent_fd):
        os.set_inheritable(fd, False)
    threading.Thread(target=_end_with, args=(parent_fd,), name="parent-watch", daemon=True).start()
    with setup:
        preparation, lend_bytes = pickle.load(setup)
        pickled = setup.read()
    channel = Channel(socket.socket(fileno=channel_fd), _never_waits, lend_bytes)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, EOFError):
        try:
            function = _load(preparation, pickled)
        except BaseException as error:  # noqa: BLE001 - importing runs whatever the user's modules do
            channel.send(Failure.of(error))
            _leave(1)
        try:
            while True:
                _answer(channel, channel.receive(), function)
        except SharedMemoryFailed as error:
            channel.send(Failure.of(error))
            _leave(1)
    _leave(0)


def _load(preparation: dict[str, object], pickled: bytes) -> Callable[[object], object]:
    marks = vars(current_process())
    # As multiprocessing does: a script that starts processes whenever it is imported is told so.
    marks["_inheriting"] = True
    try:
        prepare(preparation)
        function: object = pickle.loads(pickled)
    finally:
        del marks["_inheriting"]
    if not callable(function):
        raise TypeError(f"not a function: {function!r}")
    return function


def _answer(channel: Channel, batch: Batch, function: Callable[[object], object]) -> None:
    times: list[float] = []
    failure, value, result = None, None, None
    computed, began = process_time(), perf_counter()
    with contextlib.closing(channel.values(batch)) as values:
        try:
            for value in values:
                began = perf_counter()
                result = function(value)
                ended = perf_counter()
                channel.add(result)
                times += began, ended
        except BaseException as error:  # noqa: BLE001 - whatever a function raises is the parent's to see
            times += began, perf_counter()
            failure = Failure.of(error)
    del batch, value, result  # what shared memory they view is told to be free with this reply
    channel.send(Reply(array.array("d", times).tobytes(), process_time() - computed, failure))


def _end_with(parent_fd: int) -> None:
    """End this process, whatever it is doing, when the parent is gone."""
    poller = select.poll()
    poller.register(parent_fd, select.POLLIN)
    poller.poll()
    os._exit(1)


def _leave(code: int) -> NoReturn:
    """End without waiting for threads that the function has started, nor for modules to be torn down."""
    try:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
    finally:
        os._exit(code)


def _never_waits(_event: int) -> None:
    raise AssertionError("the worker's end of the channel blocks")
