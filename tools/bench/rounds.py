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
    unit: str
    rates: Mapping[str, Spread]
    ratios: Mapping[str, Spread]
    """`headrace/SIDE`: of the rates within each round, so that what slows the machine down slows both."""
    figures: Mapping[str, float]
    """`SIDE.FIGURE`: medians."""

    def to_json(self) -> dict[str, object]:
        rates = {side: rate.median for side, rate in self.rates.items()}
        return {
            "bench": self.name,
            "unit": self.unit,
            "figures": rates | dict(self.figures),
            "ratios": {name: ratio.median for name, ratio in self.ratios.items()},
        }


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
    return Result(
        name=name,
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
        },
    )
