"""The bench: for each workload every side is opened, takes its rounds, and is closed."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec

from tools.bench.engine.session import Session, session
from tools.bench.engine.workloads import Workload, workloads
from tools.bench.sides import LIMIT, OURS, Round, Settings, Side, Sides

WARM_S, READ_S = 0.1, 0.3
PEERS = {
    "spdl": "spdl",
    "spdl-lists": "spdl",
    "torchdata": "torchdata",
    "torchdata-prebatch": "torchdata",
    "dataloader": "torch",
    "grain": "grain",
}
"""The distribution's package that each needs."""
IN_THREADS_ONLY = {"queue", "spdl-lists"}


@contextmanager
def bench(settings: Settings) -> Iterator[Iterator[Sides]]:
    with closing(_in_turn(settings.workers, sides())) as workloads_:
        yield workloads_


def sides() -> list[str]:
    """Those that are installed; the others are named on stderr."""
    found = {package: find_spec(package) is not None for package in PEERS.values()}
    if missing := sorted(package for package, there in found.items() if not there):
        print(
            f"left out, not installed: {', '.join(missing)} (pip install 'headrace[peers]')", file=sys.stderr
        )
    return [OURS, LIMIT, "queue", *(name for name, package in PEERS.items() if found[package])]


def takes(side: str, workload: Workload) -> bool:
    return workload.on == "thread" or side not in IN_THREADS_ONLY


def _in_turn(width: int, names: list[str]) -> Generator[Sides]:
    for workload in workloads(width).values():
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context(session(name, workload)) for name in names if takes(name, workload)
            }
            rounds = {name: _side(name, live, workload) for name, live in opened.items()}
            yield Sides("items/s", rounds, workload=workload.name, derive=handoffs)


def _side(name: str, live: Session, workload: Workload) -> Side:
    loops = workload.width if name == LIMIT and workload.on == "process" else 1

    def round_() -> Round:
        seen = live.read(WARM_S, READ_S)
        figures = {
            "p50_us": seen.p50_us,
            "p99_us": seen.p99_us,
            "cpu_us": seen.cpu_s / seen.items * 1e6,
            "start_s": live.start_s,
        }
        return Round(loops * seen.items / seen.seconds, figures)

    return round_


def handoffs(rates: Mapping[str, float]) -> dict[str, float]:
    """What an item costs each side over the bare loop, in µs, from one round's rates."""
    return {
        f"{side}.handoff_us": 1e6 / rate - 1e6 / rates[LIMIT] for side, rate in rates.items() if side != LIMIT
    }
