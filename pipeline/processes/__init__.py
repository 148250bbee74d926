"""Worker processes: each calls one function on batches of values that it is sent.

```
                    this process                            a worker process
          ┌───────────────────────────────┐         ┌───────────────────────────────┐
batch ───►│ Worker.send ─► Channel        ├────────►│ Channel ─► value ─► function  │
          │   pickles    ▲                │         │    ▲                   │      │
          │   ┄┄ arrays ┄┼► Lender ┄┄┄┄┄┄┄┼┄ memfd ┄┼► Borrower              │      │
outcomes ◄┤ Worker.receive ◄─ Channel     │◄────────┤ Channel ◄───────────── result │
          └───────────────────────────────┘         └───────────────────────────────┘
```

One message a batch over a pair of sockets; what is large in it lies in anonymous shared memory, which is
written once, read in place, and reused when the last view of it is dead. A worker is started by running the
interpreter anew, as multiprocessing's "spawn" does; it dies with its parent, and its death ends whoever waits
for it.

Values come out as pickle has them: torch tensors come through shared memory only as numpy arrays.
"""

from .errors import (
    NotPicklable,
    RemoteError,
    RemoteTraceback,
    SharedMemoryFailed,
    UnguardedMain,
    WorkerClosed,
    WorkerDied,
    WorkerNotStarted,
)
from .outcomes import Raised, Returned
from .worker import Worker

__all__ = [
    "NotPicklable",
    "Raised",
    "RemoteError",
    "RemoteTraceback",
    "Returned",
    "SharedMemoryFailed",
    "UnguardedMain",
    "Worker",
    "WorkerClosed",
    "WorkerDied",
    "WorkerNotStarted",
]
