"""The engine: staged, ordered, bounded concurrency for a synchronous consumer.

```
     Plan(source)         .map(f, width=4)         .map(g)             start(plan, at=state)
     ┌────────┐ window   ┌─────────────┐ window   ┌─────────┐ outlet  ┌─────────┐
at ─►│ Reader ├─►[■■■·]─►│ ThreadMap   ├─►[■·■·]─►│ LoopMap ├─►[■■·]─►│ Running ├─► for item in running: …
     │ 1 task │          │ 1 task and  │          │ 1 task  │         │         │
     └────────┘          │ 4 threads   │          └─────────┘         └─────────┘
                         └─────────────┘
     ╰──── one event loop in one thread, one task group ────╯           the consumer's thread
```

An `Item` is a value and the state from which to continue *after* it; maps change the value and pass the state
on. What comes out is a function of the plan and the state alone: a *window* keeps the order at every width (a
stage reserves a place before it takes its input), and holds at most `ahead` items. So a consumer that stops
stops the reads, after exactly as many items as the windows have places.

An exception in a stage travels in the window as an item does, so whatever came before it is delivered first;
the consumer gets it as `StageFailed`. Leaving the `with` block ends every task and thread.

Knows nothing of text, tensors or training, and imports no package beside the standard library.
"""

from .errors import AbandonedThread, PipelineError, StageFailed
from .item import JSON, Item, State
from .plan import Plan
from .protocols import Map, Source, Traced
from .running import Running, start

__all__ = [
    "JSON",
    "AbandonedThread",
    "Item",
    "Map",
    "PipelineError",
    "Plan",
    "Running",
    "Source",
    "StageFailed",
    "State",
    "Traced",
    "start",
]
