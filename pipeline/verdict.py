"""Which stage bounds a plan's throughput, and what a wider one would give.

In a plan that has run for a while, every stage passes on what the slowest can make. With busy_i the seconds that the
calls of stage i took, and width_i the calls it may have at once, the stage could serve items/busy_i · width_i of the
consumer's items a second if nothing held it up; the consumer could take items/busy of its own. The least of these
capacities is the plan's throughput (the bottleneck law of operational analysis: Denning and Buzen, "The Operational
Analysis of Queueing Network Models", 1978), and doubling the width of that stage gives the least of the others and
twice its own.

The law takes the time of a call as given. Calls that hold the interpreter's lock take longer the more of them run, so
for threads whose calls compute, a wider stage is not promised to help.
"""

from __future__ import annotations

from dataclasses import dataclass

from .statistics import StageStats, Stats

CONSUMER = "consumer"
_COMPUTES = 0.75
"""Share of CPU time among a stage's calls and the interpreter's time from which on the lock is what they share."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a stage, or the consumer, could pass on if nothing held it up."""

    name: str
    items_per_s: float
    """In items of the consumer's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds a plan."""

    bound: str
    """The name of a stage, or "consumer"."""
    items_per_s: float
    """What the plan can give, in items of the consumer's a second."""
    capacities: tuple[Capacity, ...]
    """Of every stage and the consumer, in order."""
    if_doubled_items_per_s: float | None
    """What it would give if the bound stage were twice as wide; None where it has no width."""
    then: str | None
    """What would bound it then."""
    advice: str
    """In words, with the setting to change."""

    def __str__(self) -> str:
        return self.advice


def bottleneck(stats: Stats) -> Verdict:
    """The verdict on a plan that has run for a while; `stats.since(earlier)` leaves its start out.

    ValueError: nothing has reached the consumer in that time.
    """
    items = stats.consumer.items
    if items < 1 or stats.elapsed_s <= 0:
        raise ValueError("no item has reached the consumer yet: ask again when the plan has run for a while")
    capacities = [
        Capacity(stage.name, _per_s(_items_through(stats, k), stage)) for k, stage in enumerate(stats.stages)
    ]
    capacities.append(Capacity(CONSUMER, items / max(stats.consumer.busy_s, 1e-9)))
    least = min(capacities, key=lambda capacity: capacity.items_per_s)
    stage = next((stage for stage in stats.stages if stage.name == least.name), None)
    doubled, then = None, None
    if stage is not None and stage.can_widen and not _holds_the_lock(stage, stats):
        after = [Capacity(each.name, each.items_per_s * (2 if each is least else 1)) for each in capacities]
        next_least = min(after, key=lambda capacity: capacity.items_per_s)
        doubled, then = next_least.items_per_s, next_least.name
    return Verdict(
        bound=least.name,
        items_per_s=least.items_per_s,
        capacities=tuple(capacities),
        if_doubled_items_per_s=doubled,
        then=then,
        advice=_advice(least, stage, stats, doubled, then),
    )


def _items_through(stats: Stats, number: int) -> float:
    """How many of the consumer's items the calls of a stage amount to, those still on their way included.

    What a stage has done beyond what has arrived waits in the windows behind it: without it a stage far ahead of the
    consumer would look slow in a short run.
    """
    through = float(stats.stages[number].calls)
    for stage in stats.stages[number:]:
        through = through * stage.items / stage.calls if stage.calls else 0.0
    return max(through, float(stats.consumer.items))


def _per_s(items: float, stage: StageStats) -> float:
    return items * stage.width / max(stage.busy_s, 1e-9)


def _holds_the_lock(stage: StageStats, stats: Stats) -> bool:
    """Whether threads compete for the interpreter: their calls compute, together about one core's worth."""
    if stage.on != "thread" or stage.width == 1:
        return False
    threads = sum(each.cpu_s for each in stats.stages if each.on == "thread")
    computes = stage.cpu_s * stage.width > _COMPUTES * stage.busy_s
    return computes and _COMPUTES * stats.elapsed_s < threads < 1.1 * stats.elapsed_s


def _advice(
    least: Capacity, stage: StageStats | None, stats: Stats, doubled: float | None, then: str | None
) -> str:
    rate = f"{least.items_per_s:,.4g} items/s"
    if stage is None:
        return (
            f"the consumer is the bound ({rate}): the plan waits for it, and nothing in the plan would help"
        )
    if stage.on == "source":
        return f"the source '{stage.name}' is the bound ({rate}): read more at once, or from faster storage"
    if stage.on != "loop" and not stage.can_widen:
        return (
            f"the fold '{stage.name}' is the bound ({rate}): it has one worker; move work into maps around it"
        )
    if doubled is None:
        return (
            f"stage '{stage.name}' is the bound ({rate}), and its {stage.width} threads share one interpreter: "
            f"width would not help; give on='process', or a function that releases the lock"
        )
    after = "it would still be the bound" if then == least.name else f"then {_named(then)} is the bound"
    gained = f"width={2 * stage.width} would give {doubled:,.4g} items/s, {after}"
    return f"stage '{stage.name}' is the bound ({rate}): {gained}"


def _named(name: str | None) -> str:
    return "the consumer" if name == CONSUMER else f"'{name}'"
