"""Host memory that is written again once nobody holds what it held.

Fresh pages cost more than what is written into them: the kernel clears each of them first. So a buffer is handed out
again as soon as the last array, tensor or view over it is gone; a consumer that keeps batches keeps their buffers, and
the next batches get new ones.
"""

from __future__ import annotations

import math
import sys
import threading

import numpy as np
from numpy.typing import NDArray

KEPT = 64
"""Buffers held for each column; those beyond belong to whoever uses them."""


class Reused:
    """Memory for columns, over a bounded pool of buffers. Safe from several threads."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._buffers: dict[str, list[NDArray[np.int64]]] = {}
        # The count of a buffer that the pool alone holds, taken the way that it is compared later.
        self._alone = _references([np.empty(0, np.int64)], 0)

    def int64(self, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """An uninitialised array that nobody else holds, for column `name`."""
        wanted = math.prod(shape)
        with self._lock:
            # Whatever is derived from it refers to the buffer itself, so that the buffer's count tells of all.
            flat = self._buffer(self._buffers.setdefault(name, []), wanted)[:wanted]
        return flat.reshape(shape)

    def _buffer(self, buffers: list[NDArray[np.int64]], wanted: int) -> NDArray[np.int64]:
        for number in range(len(buffers)):
            if _references(buffers, number) == self._alone:
                if buffers[number].size < wanted:
                    buffers[number] = np.empty(wanted, np.int64)
                return buffers[number]
        buffer = np.empty(wanted, np.int64)
        if len(buffers) < self._kept:
            buffers.append(buffer)
        return buffer


def _references(buffers: list[NDArray[np.int64]], number: int) -> int:
    return sys.getrefcount(buffers[number])
