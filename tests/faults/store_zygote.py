"""A process that has torch loaded and forks savers that are killed: one start instead of one for each kill.

It reads a JSON request a line, {"path", "seed", "saves", "die_after", "file_bytes", "orphan"}, forks a child
that saves versions 1 to `saves`, and writes a JSON line for each version that the child acknowledges, then one
with how it ended.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import torch

from checkpoint import Checkpointer, CheckpointError, Tree
from tests.checkpoint.disks import dying

CHUNK_BYTES = 64


def state(seed: int, step: int) -> dict[str, Tree]:
    """What a saver's state is after so many steps: one tensor that changes, one that changes in part, one frozen."""
    generator = torch.Generator().manual_seed(seed)
    frozen = torch.rand(50, generator=generator)
    part = torch.rand(100, generator=generator)
    part[: 10 * step] += step
    return {"frozen": frozen, "part": part, "all": torch.full((40,), step + 0.5), "step": step}


def say(**line: object) -> None:
    # One write: parent and child share the pipe.
    os.write(1, (json.dumps(line) + "\n").encode())


def child(request: Mapping[str, Any]) -> None:
    if request.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"], resource.RLIM_INFINITY))
    disk = dying(request["die_after"]) if request.get("die_after") else None
    try:
        with Checkpointer(request["path"], CHUNK_BYTES, disk=disk) as checkpointer:
            first = (checkpointer.latest() or 0) + 1
            if request.get("orphan") and os.fork() == 0:
                say(orphan=os.getpid())
                while True:
                    signal.pause()
            for step in range(first, first + request["saves"]):
                checkpointer.save(step, {"a": state(request["seed"], step)})
                info = checkpointer.wait()
                assert info is not None
                say(acknowledged=info.version)
    except CheckpointError as error:
        say(error=type(error).__name__, message=str(error))


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(request)
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                os._exit(code)
        say(pid=pid)
        _, status = os.waitpid(pid, 0)
        say(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
