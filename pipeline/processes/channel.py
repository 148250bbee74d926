"""A channel between two processes: batches of values, large buffers through shared memory.

```
add(value) … send(tail)   ─► one message: the pickles of small values, and where large ones lie ─►   receive()
                                                                                     values(batch) ─► value …
```

Each value is pickled when it is added, so it may be changed afterwards, and each comes out on its own: one
that does not pickle or unpickle spoils no other. Of a large value the buffers that its pickle points to
(protocol 5: arrays and the like) are copied once, into shared memory, and read in place there.
"""

from __future__ import annotations

import array
import os
import pickle
import select
import socket
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import TypeAlias, cast

from .errors import NotPicklable, SharedMemoryFailed
from .shared_memory import Borrower, Lender, aligned

LEND_BYTES = 64 << 20
"""How much of shared memory the values that came through a channel may keep by default."""

_LARGE_BYTES = 32 << 10
"""Buffers and pickles from here on go through shared memory: below, copying twice is cheaper than the bookkeeping."""
_INLINE_BYTES = 16 << 10
_MESSAGE_BYTES = 64 << 10
_MOST_NUMBERS = 1024
"""Segments told to be free or gone in one message."""
_MOST_DESCRIPTORS = 250
"""The kernel passes 253 in a message."""
_INT_BYTES = array.array("i").itemsize
_RIGHTS_BYTES = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _INT_BYTES)
# As plain integers: an operation on the enumeration costs as much as receiving a message.
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_TRUNCATED = int(socket.MSG_CTRUNC)
_ATOMS = frozenset({int, float, complex, bool, str, type(None)})
"""They cannot fail to pickle or unpickle and cannot change: neighbours share one pickle."""

Wait: TypeAlias = Callable[[int], None]
"""Returns once the socket is ready for what it is called with (`select.POLLIN`, `POLLOUT`), or raises."""
_Pickled: TypeAlias = tuple[bytes | None, int, tuple[int, ...]]
"""A value: its pickle (None: it is the segment's first span), the segment (0: none), the lengths of its spans."""
_Record: TypeAlias = "list[object] | _Pickled"


@dataclass(frozen=True, slots=True)
class Batch:
    """A message as it was received."""

    records: Sequence[_Record]
    tail: object
    """What the sender gave to `send`."""


class Channel:
    """One end. All methods but `close` belong to one thread at a time."""

    def __init__(self, end: socket.socket, wait: Wait, lend_bytes: int = LEND_BYTES) -> None:
        """`end`: of a SOCK_SEQPACKET pair; `wait` is called where it does not block and is not ready."""
        self._socket = end
        self._wait = wait
        self._lender = Lender(keep_bytes=lend_bytes // 4)
        self._borrower = Borrower(lend_bytes)
        self._records: list[_Record] = []
        self._buffer = bytearray(_MESSAGE_BYTES)

    def add(self, value: object) -> None:
        """Put `value` into the batch that is sent next. NotPicklable, SharedMemoryFailed: it was not added."""
        if type(value) not in _ATOMS:
            self._records.append(self._pickle(value))
        elif self._records and isinstance(self._records[-1], list):
            self._records[-1].append(value)
        else:
            self._records.append([value])

    def send(self, tail: object) -> None:
        """Send what was added, and `tail` (plain data). OSError: the other end is closed."""
        pickled = pickle.dumps((self._records, tail), protocol=5)
        self._records = []
        body: bytes | tuple[int, int] = pickled
        if len(pickled) > _INLINE_BYTES:
            segment = self._lender.take(len(pickled))
            segment.write(0, pickled)
            body = segment.number, len(pickled)
        gone = self._lender.surplus(_MOST_NUMBERS)
        fresh = dict(self._lender.fresh)
        message = pickle.dumps((self._borrower.released(_MOST_NUMBERS), gone, tuple(fresh), body), protocol=5)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fresh.values()))] if fresh else []
        while True:
            try:
                self._socket.sendmsg((message,), rights)
                break
            except BlockingIOError:
                self._wait(select.POLLOUT)
        self._lender.sent(fresh)

    def receive(self) -> Batch:
        """The next batch. EOFError: the other end is closed. SharedMemoryFailed: out of descriptors or memory."""
        free, gone, _, body = self._receive_message()
        self._lender.give_back(free)
        self._borrower.unmap(gone)
        if isinstance(body, bytes):
            records, tail = pickle.loads(body)
        else:
            number, length = body
            records, tail = pickle.loads(self._borrower.view(number)[:length])
            self._borrower.release(number)
        return Batch(records, tail)

    def values(self, batch: Batch) -> Generator[object, None, None]:
        """The batch's values, each unpickled when it is asked for.

        To be exhausted or closed, or what is left of the batch is never released. NotPicklable: one cannot be
        unpickled; the iteration ends with it.
        """
        left = iter(batch.records)
        try:
            for record in left:
                if isinstance(record, list):
                    yield from record
                else:
                    yield self._unpickle(record)
        finally:
            for record in left:
                if not isinstance(record, list) and record[1]:
                    self._borrower.release(record[1])

    def close(self) -> None:
        """Close this end and let go of shared memory, except for what is lent out."""
        self._socket.close()
        self._lender.close()
        self._borrower.close()

    def _pickle(self, value: object) -> _Pickled:
        spans: list[memoryview] = []

        def keep_in_band(buffer: PickleBuffer) -> bool:
            view = buffer.raw()
            if len(view) < _LARGE_BYTES:
                return True
            spans.append(view)
            return False

        out_of_band = len(self._lender.fresh) < _MOST_DESCRIPTORS
        try:
            pickled = pickle.dumps(
                _Copied(cast("bytes", value)) if _is_large_bytes(value) else value,
                protocol=5,
                buffer_callback=keep_in_band if out_of_band else None,
            )
        except Exception as error:
            raise NotPicklable(
                f"a value of type {type(value).__module__}.{type(value).__qualname__} "
                f"cannot be sent to another process: {type(error).__name__}: {error}"
            ) from error
        if not out_of_band or not (spans or len(pickled) >= _LARGE_BYTES):
            return pickled, 0, ()
        inside = len(pickled) >= _INLINE_BYTES
        pieces = [memoryview(pickled), *spans] if inside else spans
        lengths = tuple(map(len, pieces))
        bounds = _bounds(lengths)
        segment = self._lender.take(bounds[-1][1])
        for (start, _), piece in zip(bounds, pieces, strict=True):
            segment.write(start, piece)
        return None if inside else pickled, segment.number, lengths

    def _unpickle(self, record: _Pickled) -> object:
        try:
            return self._load(record)
        except Exception as error:
            raise NotPicklable(
                f"a value from another process cannot be unpickled: {type(error).__name__}: {error}"
            ) from error

    def _load(self, record: _Pickled) -> object:
        pickled, number, lengths = record
        if not number:
            assert pickled is not None
            return pickle.loads(pickled)
        bounds = _bounds(lengths)
        shared = self._borrower.view(number)
        code: bytes | memoryview
        if pickled is None:
            start, end = bounds.pop(0)
            code = shared[start:end]
        else:
            code = pickled
        lent = self._borrower.lend(number) if bounds else None
        if lent is not None:
            return pickle.loads(code, buffers=[lent[start:end] for start, end in bounds])
        try:
            return pickle.loads(code, buffers=[bytearray(shared[start:end]) for start, end in bounds])
        finally:
            self._borrower.release(number)

    def _receive_message(self) -> tuple[list[int], list[int], tuple[int, ...], bytes | tuple[int, int]]:
        while True:
            try:
                size, ancillary, flags, _ = self._socket.recvmsg_into(
                    (self._buffer,), _RIGHTS_BYTES, _CLOSE_ON_EXEC
                )
                break
            except BlockingIOError:
                self._wait(select.POLLIN)
            except ConnectionResetError:
                continue  # the other end closed without reading all; what it sent can still be read
        if not size:
            raise EOFError
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data[: len(data) - len(data) % _INT_BYTES])
        message: tuple[list[int], list[int], tuple[int, ...], bytes | tuple[int, int]]
        message = pickle.loads(memoryview(self._buffer)[:size])
        if flags & _TRUNCATED:
            for fd in descriptors:
                os.close(fd)
            raise SharedMemoryFailed(
                f"the system passed {len(descriptors)} of {len(message[2])} descriptors of shared memory: "
                "raise the limit on open files (ulimit -n)"
            )
        for number, fd in zip(message[2], descriptors, strict=True):
            self._borrower.map(number, fd)
        return message


class _Copied:
    """Has bytes or a bytearray pickled as a call of its type with a buffer, which may lie out of band."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[type, tuple[PickleBuffer]]:
        return type(self._data), (PickleBuffer(self._data),)


def _is_large_bytes(value: object) -> bool:
    return type(value) in (bytes, bytearray) and len(cast("bytes", value)) >= _LARGE_BYTES


def _bounds(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Where each span of a segment begins and ends."""
    bounds, end = [], 0
    for length in lengths:
        start = aligned(end)
        end = start + length
        bounds.append((start, end))
    return bounds
