"""The engine: staged, ordered, bounded concurrency for a synchronous consumer.

```
     Plan(source)         .map(f, width=4)           .fold(packer)        .map(g, on="process")
     ┌────────┐ window   ┌─────────────────┐ window ┌────────────┐ window ┌──────────────┐ outlet  ┌─────────┐
at ─►│ Reader ├─►[■■■·]─►│ ThreadMap       ├─►[■·■]►│ FoldThread ├─►[■■·]►│ ProcessMap   ├─►[■■·]─►│ Running ├─►
     │ 1 task │          │ 4 threads       │ (Gate) │ 1 thread   │        │ 1 thread and │         │         │
     └────────┘          └─────────────────┘        └────────────┘        │ process each │         └─────────┘
                                                                          └──────────────┘
     ╰ one event loop in one thread, one task group; LoopMap too ╯                            the consumer's thread
```

An `Item` is a value and the state from which to continue *after* it. Maps change the value and pass the state on;
folds join and split values and put their own state beside the source's. What comes out is a function of the plan
and the state alone: a *window* keeps the order at every width (a worker reserves a place as it takes its input), and
holds at most `ahead` items; a *budget* bounds the bytes of all windows together. So a consumer that stops stops the
reads.

An exception in a stage travels in the window as an item does, so whatever came before it is delivered first; the
consumer gets it as `StageFailed`, unless the stage's policy is to call again (`Retry`) or to go on without the item
(`Drop`). Leaving the `with` block ends every task, thread and process.

`running.stats()` says what each stage has done, `bottleneck(stats)` which one bounds the plan, and
`start(plan, trace=path)` writes the life of each item.

Knows nothing of text, tensors or training, and imports no package beside the standard library.
"""

from .errors import AbandonedThread, PipelineError, StageFailed, StateMismatch, TimeLimit, TooManyDropped
from .item import JSON, Item, State
from .plan import Plan
from .policy import Drop, Dropped, Retry
from .processes import WorkerDied
from .protocols import Fold, Map, Sink, Source, Traced
from .quarantine import Quarantine
from .running import Running, start
from .statistics import ConsumerStats, StageStats, Stats
from .verdict import Verdict, bottleneck

__all__ = [
    "JSON",
    "AbandonedThread",
    "ConsumerStats",
    "Drop",
    "Dropped",
    "Fold",
    "Item",
    "Map",
    "PipelineError",
    "Plan",
    "Quarantine",
    "Retry",
    "Running",
    "Sink",
    "Source",
    "StageFailed",
    "StageStats",
    "State",
    "StateMismatch",
    "Stats",
    "TimeLimit",
    "TooManyDropped",
    "Traced",
    "Verdict",
    "WorkerDied",
    "bottleneck",
    "start",
]
