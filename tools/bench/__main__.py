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

from tools.bench.rounds import Result, run_rounds, to_json
from tools.bench.sides import Bench, Round, Settings, Sides
from trainer.entry import DONE, guarded

Name: TypeAlias = Literal["pack", "feed", "scaling", "overlap", "engine"]
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

    console = Console()
    results: list[Result] = []
    with bench(Settings(arguments.cache, workers, arguments.tokenizer)) as given:
        for sides in (given,) if isinstance(given, Sides) else given:

            def tell(side: str, done: Round, workload: str = sides.workload) -> None:
                progress.print(f"{workload:<20}{side:<16}{done.rate:>16,.0f}".lstrip(), highlight=False)

            results.append(run_rounds(arguments.name, sides, arguments.rounds, tell))
            console.print(_table(results[-1], arguments.rounds), _figures(results[-1]))
    if arguments.json:
        print(json.dumps(to_json(results)))
    return DONE


def _table(result: Result, rounds: int) -> Table:
    table = Table(title=f"{result.name} {result.workload}".rstrip() + f": {result.unit}, {rounds} rounds")
    for column in ("side", "median", "low", "high", "headrace/side"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for side, rate in result.rates.items():
        ratio = result.ratios.get(f"headrace/{side}")
        against = "" if ratio is None else f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        table.add_row(side, *(f"{value:,.0f}" for value in (rate.median, rate.low, rate.high)), against)
    return table


def _figures(result: Result) -> Table:
    """A row for each side that has figures."""
    table = Table("side", box=None, show_header=True, padding=(0, 2))
    names = list(dict.fromkeys(figure.partition(".")[2] for figure in result.figures))
    for name in names:
        table.add_column(name, justify="right")
    for side in result.rates:
        cells = [result.figures.get(f"{side}.{name}") for name in names]
        if any(cell is not None for cell in cells):
            table.add_row(
                side, *("" if cell is None else f"{cell:,.3f}".rstrip("0").rstrip(".") for cell in cells)
            )
    return table


if __name__ == "__main__":
    raise SystemExit(guarded(main))
