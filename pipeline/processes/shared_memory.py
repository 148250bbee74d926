"""Anonymous shared memory: one side lends it, the other reads it in place and says when it is free again.

```
sender: Lender                                    receiver: Borrower
take(size) ─► Segment, filled ─── in a message ──► lend(number) ─► views, until the last one is dead
     ▲                                                                       │
     └── give_back(numbers) ◄──── in a message of the other direction ◄──────┘ released()
```

A *segment* is a memfd that both sides have mapped. Its descriptor travels once, with the first message that
uses it, and both sides then close theirs: only mappings are left, which end with the processes, so there is
nothing to clean up.

The sender never waits for a segment: with none idle it makes one. The receiver in turn lends no more than a
limit out to its user, and copies above that, so that results that are kept do not pin segments for ever.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterable
from pickle import PickleBuffer

from .errors import SharedMemoryFailed

SMALLEST_BYTES = 64 << 10
_IDLE_MESSAGES = 64
"""A segment that so many messages did without is given up."""
_CHUNK_BYTES = 4 << 20
"""A copy holds the interpreter's lock: so much at once, or other threads would stand still."""
_MAP_FIXED = 0x10

_libc_mmap = ctypes.CDLL(None, use_errno=True).mmap
_libc_mmap.restype = ctypes.c_void_p
_libc_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


def attach(fd: int) -> mmap.mmap:
    """Map the whole of a memfd; the descriptor can be closed afterwards. OSError: no memory to map it.

    An anonymous mapping has the memfd's pages laid over it: `mmap.mmap(fd, …)` would keep a duplicate of the
    descriptor for as long as the mapping lives (before Python 3.13, always).
    """
    memory = mmap.mmap(-1, os.fstat(fd).st_size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    access = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc_mmap(place, len(memory), access, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != place:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return memory


def aligned(offset: int) -> int:
    """The next offset at which a buffer may begin: 64 bytes, a cache line and the widest vector register."""
    return (offset + 63) & ~63


class Segment:
    """A shared buffer as its sender has it."""

    __slots__ = ("_view", "idle_since", "number", "size")

    def __init__(self, number: int, memory: mmap.mmap) -> None:
        self.number = number
        self.size = len(memory)
        self.idle_since = 0
        self._view = memoryview(memory)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Copy `data` (bytes) in at `offset`."""
        end = offset + len(data)
        if len(data) <= _CHUNK_BYTES:
            self._view[offset:end] = data
            return
        source = memoryview(data)
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = source[start : start + _CHUNK_BYTES]
            self._view[offset + start : offset + start + len(chunk)] = chunk


class Lender:
    """The segments of one direction, at the side that writes them. Belongs to one thread."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._out: dict[int, Segment] = {}
        self._idle: dict[int, list[Segment]] = {}
        self._idle_bytes = 0
        self._messages = 0
        self._made = 0
        self.fresh: dict[int, int] = {}
        """Segments that the receiver does not have yet, with their descriptors."""

    def take(self, size: int) -> Segment:
        """A segment of at least `size` bytes, until it is given back. SharedMemoryFailed: there is none."""
        size = max(SMALLEST_BYTES, 1 << (size - 1).bit_length())
        stack = self._idle.get(size)
        if stack:
            segment = stack.pop()
            self._idle_bytes -= size
        else:
            segment = self._make(size)
        self._out[segment.number] = segment
        return segment

    def give_back(self, numbers: Iterable[int]) -> None:
        """Those segments may be written again."""
        for number in numbers:
            segment = self._out.pop(number)
            segment.idle_since = self._messages
            self._idle.setdefault(segment.size, []).append(segment)
            self._idle_bytes += segment.size

    def surplus(self, most: int) -> list[int]:
        """Give up to `most` idle segments up that are not worth keeping; once a message. The receiver lets them go."""
        self._messages += 1
        before = self._messages - _IDLE_MESSAGES
        gone: list[int] = []
        for stack in self._idle.values():
            while stack and len(gone) < most:
                crowded = len(stack) > 2 and self._idle_bytes > self._keep_bytes
                if not crowded and stack[0].idle_since >= before:
                    break
                segment = stack.pop(0)
                self._idle_bytes -= segment.size
                gone.append(segment.number)
        return gone

    def sent(self, numbers: Iterable[int]) -> None:
        """The receiver has those segments' descriptors."""
        for number in numbers:
            os.close(self.fresh.pop(number))

    def close(self) -> None:
        """Let go of all segments."""
        self.sent(list(self.fresh))
        self._out.clear()
        self._idle.clear()

    def _make(self, size: int) -> Segment:
        try:
            fd = os.memfd_create("headrace")
            try:
                os.ftruncate(fd, size)
                memory = attach(fd)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise SharedMemoryFailed(f"no shared memory of {size} bytes: {error}") from error
        self._made += 1
        self.fresh[self._made] = fd
        return Segment(self._made, memory)


class Borrower:
    """The segments of one direction, at the side that reads them. Views may die in any thread."""

    def __init__(self, lend_bytes: int) -> None:
        self._lend_bytes = lend_bytes
        self._lent_bytes = 0
        self._mapped: dict[int, mmap.mmap] = {}
        self._loans: dict[int, weakref.ref[ctypes.Array[ctypes.c_ubyte]]] = {}
        self._ended: deque[int] = deque()
        self._free: list[int] = []

    def map(self, number: int, fd: int) -> None:
        """Learn of a new segment, and close the descriptor. SharedMemoryFailed: it cannot be mapped."""
        try:
            self._mapped[number] = attach(fd)
        except OSError as error:
            raise SharedMemoryFailed(f"cannot map shared memory: {error}") from error
        finally:
            os.close(fd)

    def unmap(self, numbers: Iterable[int]) -> None:
        """Let go of segments that the sender gave up."""
        for number in numbers:
            del self._mapped[number]

    def view(self, number: int) -> memoryview:
        """The segment's bytes, to be read and dropped before it is released."""
        return memoryview(self._mapped[number])

    def lend(self, number: int) -> memoryview | None:
        """The segment's bytes, released by the death of all that views them; None above the limit."""
        self._collect()
        memory = self._mapped[number]
        size = len(memory)
        if self._lent_bytes + size > self._lend_bytes:
            return None
        whole = (ctypes.c_ubyte * size).from_buffer(memory)
        ended = self._ended
        self._loans[number] = weakref.ref(whole, lambda _: ended.append(number))
        self._lent_bytes += size
        # Of format "B": what the array itself gives a view of has a format that few can read.
        return PickleBuffer(whole).raw()

    def release(self, number: int) -> None:
        """The segment has been read."""
        self._free.append(number)

    def released(self, most: int) -> list[int]:
        """Segments that may be written again, each told once, at most `most` at a time."""
        self._collect()
        told, self._free = self._free[:most], self._free[most:]
        return told

    def close(self) -> None:
        """Let go of all segments; what is lent stays mapped until it is dead."""
        self._mapped.clear()
        self._loans.clear()

    def _collect(self) -> None:
        while self._ended:
            number = self._ended.popleft()
            del self._loans[number]
            self._lent_bytes -= len(self._mapped[number])
            self._free.append(number)
