"""`python -m tools.bench NAME`: run a bench, print its table, and with --json one line at the end."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast

import tyro
from rich.console import Console
from rich.table import Table

from tools.bench.rounds import Result, run_rounds
from tools.bench.sides import Bench, Round, Settings
from trainer.entry import DONE, guarded

Name: TypeAlias = Literal["pack", "feed", "scaling", "overlap"]
"""Each is a module of this package."""


@dataclass(frozen=True)
class Arguments:
    """Measure against the physical limit and peers: the sides take turns over several rounds."""

    name: tyro.conf.Positional[Name]
    rounds: int = 5
    json: bool = False
    """End with one line of JSON: {"bench", "figures", "ratios"}; ratios are of rates, higher is better."""
    workers: Annotated[int, tyro.conf.arg(help_behavior_hint="(default: the CPUs that may be used)")] = 0
    """Threads of each side."""
    tokenizer: Path | None = None
    """A tokenizer.json to measure with, in place of the bench's own."""
    cache: Path = Path(".cache/bench")
    """Where prepared inputs are kept."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = tyro.cli(Arguments, args=argv, prog="python -m tools.bench")
    bench = cast("Bench", importlib.import_module(f"tools.bench.{arguments.name}").bench)
    arguments.cache.mkdir(parents=True, exist_ok=True)
    workers = arguments.workers or len(os.sched_getaffinity(0))
    progress = Console(stderr=True)

    def tell(side: str, done: Round) -> None:
        progress.print(f"{side:<16}{done.rate:>16,.0f}", highlight=False)

    with bench(Settings(arguments.cache, workers, arguments.tokenizer)) as sides:
        result = run_rounds(arguments.name, sides, arguments.rounds, tell)
    Console().print(_table(result, arguments.rounds))
    for figure, value in result.figures.items():
        print(f"  {figure}  {value:,.3f}".rstrip("0").rstrip("."))
    if arguments.json:
        print(json.dumps(result.to_json()))
    return DONE


def _table(result: Result, rounds: int) -> Table:
    table = Table(title=f"{result.name}: {result.unit}, {rounds} rounds")
    for column in ("side", "median", "low", "high", "headrace/side"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for side, rate in result.rates.items():
        ratio = result.ratios.get(f"headrace/{side}")
        against = "" if ratio is None else f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        table.add_row(side, *(f"{value:,.0f}" for value in (rate.median, rate.low, rate.high)), against)
    return table


if __name__ == "__main__":
    raise SystemExit(guarded(main))
