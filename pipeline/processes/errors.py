"""The exceptions of worker processes.

```
PipelineError
├── WorkerDied          the process is gone: by which signal, or with which exit code
├── WorkerNotStarted    no process, or its function could not be loaded there; chained to why
│   └── UnguardedMain   the script would start workers whenever it is imported, so in each worker too
├── WorkerClosed        close() was called
├── SharedMemoryFailed  the system refused shared memory, or a descriptor for it
├── NotPicklable        an argument or a result that cannot go to another process
└── RemoteError         stands in for an exception that cannot come to this process

RemoteTraceback         the `__cause__` of an exception that came from a worker: its traceback there, as text
```
"""

from __future__ import annotations

from pipeline.errors import PipelineError


class WorkerDied(PipelineError):
    """The worker process is gone, and what it was working on with it."""

    def __init__(self, name: str, pid: int, how: str) -> None:
        super().__init__(name, pid, how)
        self.name = name
        self.pid = pid
        self.how = how
        """Such as "killed by SIGKILL" or "ended with exit code 3"."""

    def __str__(self) -> str:
        return f"worker process '{self.name}' (pid {self.pid}) {self.how}"


class WorkerNotStarted(PipelineError):
    """There is no worker that could call the function; `__cause__` is why."""

    exit_code = 2


class UnguardedMain(WorkerNotStarted):
    """A worker was started by a script that a worker was just importing."""


class WorkerClosed(PipelineError):
    """The worker was closed on this side."""


class SharedMemoryFailed(PipelineError):
    """The system refused shared memory or a descriptor for it; `__cause__` is the OSError."""


class NotPicklable(PipelineError):
    """A value that cannot be sent to another process; `__cause__` is what pickle raised."""

    exit_code = 2


class RemoteError(PipelineError):
    """An exception of a worker that cannot be had here: its class, message and traceback, as text."""

    def __init__(self, kind: str, message: str, text: str) -> None:
        super().__init__(kind, message, text)
        self.kind = kind
        """The original's class, with its module."""
        self.message = message
        self.text = text
        """The traceback in the worker."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class RemoteTraceback(Exception):
    """Where an exception was raised in a worker; only ever the `__cause__` of that exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'
