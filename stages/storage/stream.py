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
    spans = iter([(at, min(at + range_bytes, stop)) for at in range(start, stop, range_bytes)])

    def ask() -> None:
        while len(ahead) < max(1, window_bytes // range_bytes):
            span = next(spans, None)
            if span is None:
                return
            ahead.append(asyncio.create_task(storage.read(path, [span])))

    try:
        ask()
        while ahead:
            (data,) = await ahead[0]
            ahead.popleft()
            for at in range(0, len(data), piece_bytes):
                yield data[at : at + piece_bytes]
            del data  # else it is held beside the window while the next is awaited
            ask()
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)
