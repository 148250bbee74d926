"""How a stage tells the engine's end from an exception of the user's own."""

from __future__ import annotations

import asyncio


def task_is_stopped() -> bool:
    """Whether the running task was cancelled by the engine.

    A CancelledError alone does not say so: a stage's function may await something of its own that was
    cancelled.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
