"""A side in a process of its own: opened once, then read for a while each time it is asked, its buffers full between.

`python -m tools.bench.engine.server SIDE WORKLOAD WIDTH STAMPS`: prints one line of JSON once it has given its first
items, and one for each line of standard input; ends with that.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias, TypedDict, cast

from tools.bench.engine.measuring import Consumer
from tools.bench.engine.stamps import Stamps
from tools.bench.engine.workloads import Workload, workloads

Adapter: TypeAlias = Callable[[Workload, Stamps], AbstractContextManager[Iterator[object]]]
"""A side: `opened(workload, stamps)` of a module of `adapters`. The values come in order and without end, and each
`stamps.stride`-th index is stamped when it is given."""


class Request(TypedDict, total=False):
    warm_s: float
    seconds: float
    take: int
    """In place of both: the numbers of so many strides."""


def main(side: str, workload_name: str, width: str, stamps_path: str) -> None:
    workload = workloads(int(width))[workload_name]
    stamps = Stamps(Path(stamps_path), workload.stride)
    opened = cast(
        "Adapter", importlib.import_module(f"tools.bench.engine.adapters.{side.replace('-', '_')}").opened
    )
    with opened(workload, stamps) as values:
        consumer = Consumer(values, workload, stamps)
        _say(consumer.take(1))
        for line in sys.stdin:
            request: Request = json.loads(line)
            if "take" in request:
                _say(consumer.take(request["take"]))
            else:
                _say(asdict(consumer.read(request["warm_s"], request["seconds"])))


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
