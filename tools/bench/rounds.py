"""Rounds of all sides in turn, and what they amount to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tools.bench.sides import OURS, Round, Sides


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Result:
    """What a bench has shown."""

    name: str
    workload: str
    """One of several of that bench; "" where it has but one."""
    unit: str
    rates: Mapping[str, Spread]
    ratios: Mapping[str, Spread]
    """`headrace/SIDE`: of the rates within each round, so that what slows the machine down slows both."""
    figures: Mapping[str, float]
    """`SIDE.FIGURE`: medians."""


def to_json(results: Sequence[Result]) -> dict[str, object]:
    """One bench's results: medians by name. A workload's begin `WORKLOAD/`; those without are the first's."""
    figures: dict[str, float] = {}
    ratios = {name: ratio.median for name, ratio in results[0].ratios.items()}
    for result in results:
        prefix = f"{result.workload}/" if result.workload else ""
        rates = {side: rate.median for side, rate in result.rates.items()}
        figures |= {prefix + name: value for name, value in (rates | dict(result.figures)).items()}
        ratios |= {prefix + name: ratio.median for name, ratio in result.ratios.items()}
    return {"bench": results[0].name, "unit": results[0].unit, "figures": figures, "ratios": ratios}


def run_rounds(name: str, sides: Sides, rounds: int, tell: Callable[[str, Round], None]) -> Result:
    """Run every side once a round, beginning with another one each time, and report each round to `tell`."""
    if rounds < 1:
        raise ValueError(f"rounds must be >= 1, got {rounds}")
    order = list(sides.sides)
    seen: dict[str, list[Round]] = {side: [] for side in order}
    for number in range(rounds):
        shift = number % len(order)
        for side in order[shift:] + order[:shift]:
            done = sides.sides[side]()
            seen[side].append(done)
            tell(side, done)
    ours = seen[OURS]
    derived = [
        sides.derive({side: done[number].rate for side, done in seen.items()}) for number in range(rounds)
    ]
    return Result(
        name=name,
        workload=sides.workload,
        unit=sides.unit,
        rates={side: Spread.of([each.rate for each in done]) for side, done in seen.items()},
        ratios={
            f"{OURS}/{side}": Spread.of([a.rate / b.rate for a, b in zip(ours, done, strict=True)])
            for side, done in seen.items()
            if side != OURS
        },
        figures={
            f"{side}.{figure}": median(each.figures[figure] for each in done)
            for side, done in seen.items()
            for figure in done[0].figures
        }
        | {figure: median(each[figure] for each in derived) for figure in derived[0]},
    )
