"""One file from front to back, read ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from stages.storage.protocol import Storage

RANGE_BYTES = 8 << 20
"""Enough that 50 ms until the first byte are little beside the transfer, small enough that a retry is cheap."""
WINDOW_BYTES = 64 << 20


async def stream(
    storage: Storage,
    path: str,
    start: int,
    stop: int,
    *,
    piece_bytes: int,
    range_bytes: int = RANGE_BYTES,
    window_bytes: int = WINDOW_BYTES,
) -> AsyncGenerator[bytes, None]:
    """The bytes [start, stop), in order, in pieces of `piece_bytes`; the last may be smaller.

    Requests of `range_bytes`, a multiple of `piece_bytes`, are in flight or waiting to be used as far as `window_bytes`
    allow, and at least one is. Raises what `storage.read` raises, after the pieces before it.
    """
    if range_bytes < 1 or piece_bytes < 1 or range_bytes % piece_bytes:
        raise ValueError(
            f"range_bytes must be a multiple of piece_bytes, got {range_bytes} and {piece_bytes}"
        )
    ahead: deque[asyncio.Task[list[bytes]]] = deque()
    begins = iter(range(start, stop, range_bytes))

    def ask() -> None:
        while len(ahead) < max(1, window_bytes // range_bytes):
            begin = next(begins, None)
            if begin is None:
                return
            end = min(begin + range_bytes, stop)
            # Spans that touch are one request, and each is a piece that need not be cut out of a copy again.
            spans = [(at, min(at + piece_bytes, end)) for at in range(begin, end, piece_bytes)]
            ahead.append(asyncio.create_task(storage.read(path, spans)))

    try:
        ask()
        while ahead:
            pieces = deque(await ahead[0])
            ahead.popleft()
            while pieces:
                yield pieces.popleft()
            ask()
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)
