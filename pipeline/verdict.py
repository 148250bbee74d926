"""Which stage bounds a plan's throughput, and what a wider one would give.

In a plan that has run for a while, every stage passes on what the slowest can make. With busy_i the seconds that the
calls of stage i took, and width_i the calls it may have at once, the stage could serve items/busy_i · width_i of the
consumer's items a second if nothing held it up; the consumer could take items/busy of its own. The least of these
capacities is the plan's throughput (the bottleneck law of operational analysis: Denning and Buzen, "The Operational
Analysis of Queueing Network Models", 1978), and doubling the width of that stage gives the least of the others and
twice its own.

The law takes the time of a call as given. Calls that compute take longer the more of them run, once they are as many
as the cores, or, where they hold the interpreter's lock, as one: a wider stage is not promised to help there.
"""

from __future__ import annotations

from dataclasses import dataclass

from .statistics import StageStats, Stats

CONSUMER = "consumer"
CORES = "cores"
_COMPUTES = 0.6
"""Share of processor time among a stage's calls, and of the interpreter's time, from which on a lock may be shared: not
all of it goes to calls, nor does a busy machine give all."""
_IDLE = 0.6
"""Share of the bound's capacity below which something else than calls takes the time."""
_LEAST_BUSY_S = 1e-9


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a stage, or the consumer, could pass on if nothing held it up."""

    name: str
    items_per_s: float
    """In items of the consumer's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds a plan; printed, it is a sentence of advice."""

    bound: str
    """The name of a stage, or "consumer"."""
    items_per_s: float
    """What the plan can give, in items of the consumer's a second: the bound's capacity."""
    capacities: tuple[Capacity, ...]
    """Of every stage in order, the consumer last."""
    if_doubled_items_per_s: float | None
    """What it would give if the bound stage were twice as wide; None where it has no width, or where its threads may
    hold the interpreter's lock, so that nothing can be promised."""
    then: str | None
    """What would bound it then: a stage, the "consumer", or the "cores" of the machine."""
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
    through = [_items_through(stats, number) for number in range(len(stats.stages))]
    capacities = [
        Capacity(stage.name, passed * _calls_at_once(stage) / max(stage.busy_s, _LEAST_BUSY_S))
        for stage, passed in zip(stats.stages, through, strict=True)
    ]
    capacities.append(Capacity(CONSUMER, items / max(stats.consumer.busy_s, _LEAST_BUSY_S)))
    bound = min(range(len(capacities)), key=lambda number: capacities[number].items_per_s)
    # By place: a stage may be called "consumer".
    stage = stats.stages[bound] if bound < len(stats.stages) else None
    after = None
    if stage is not None and stage.can_widen and not _may_hold_lock(stage, stats):
        after = _after_doubling(bound, capacities, _cores_allow(stats, through))
    least = capacities[bound]
    return Verdict(
        bound=least.name,
        items_per_s=least.items_per_s,
        capacities=tuple(capacities),
        if_doubled_items_per_s=None if after is None else after.items_per_s,
        then=None if after is None else after.name,
        advice=_advice(stage, least, after) + _remark(stats, least),
    )


def _items_through(stats: Stats, number: int) -> float:
    """How many of the consumer's items the calls of a stage amount to, those still on their way included.

    What a stage has done beyond what has arrived waits in the windows behind it: without it a stage far ahead of the
    consumer would look slow in a short run.
    """
    through = float(stats.stages[number].items)
    for stage in stats.stages[number + 1 :]:
        taken = stage.calls if _is_fold(stage) else stage.items + stage.dropped
        through *= stage.items / taken if taken else 1.0
    return max(through, float(stats.consumer.items))


def _is_fold(stage: StageStats) -> bool:
    return stage.on == "thread" and not stage.can_widen


def _calls_at_once(stage: StageStats) -> int:
    """Of a def on the loop there is one at a time, whatever its width."""
    return stage.width if stage.can_widen else 1


def _after_doubling(bound: int, capacities: list[Capacity], cores: Capacity) -> Capacity:
    """The least capacity if the stage `bound` were twice as wide; no less than now."""
    now = capacities[bound].items_per_s
    others = [capacity for number, capacity in enumerate(capacities) if number != bound]
    doubled = Capacity(capacities[bound].name, 2 * now)
    least = min([*others, cores, doubled], key=lambda capacity: capacity.items_per_s)
    return Capacity(least.name, max(least.items_per_s, now))


def _cores_allow(stats: Stats, through: list[float]) -> Capacity:
    """What the machine's cores could compute for the plan alone."""
    cpu_s = sum(stage.cpu_s / passed for stage, passed in zip(stats.stages, through, strict=True))
    return Capacity(CORES, stats.cores / max(cpu_s, _LEAST_BUSY_S))


def _may_hold_lock(stage: StageStats, stats: Stats) -> bool:
    """Whether threads may compete for the interpreter: their calls compute, together about one core's worth."""
    if stage.on != "thread":
        return False
    threads = sum(each.cpu_s for each in stats.stages if each.on == "thread")
    computes = stage.cpu_s * stage.width > _COMPUTES * stage.busy_s
    return computes and _COMPUTES * stats.elapsed_s < threads < 1.15 * stats.elapsed_s


def _advice(stage: StageStats | None, least: Capacity, after: Capacity | None) -> str:
    rate = f"{least.items_per_s:,.4g} items/s"
    if stage is None:
        return (
            f"the consumer is the bound ({rate}): the plan waits for it, and nothing in the plan would help"
        )
    name = f"'{stage.name}'"
    if stage.on == "source":
        return f"the source {name} is the bound ({rate}): read more at once, or from faster storage"
    if _is_fold(stage):
        return f"the fold {name} is the bound ({rate}): it has one worker; move work into maps around it"
    bound = f"stage {name} is the bound ({rate})"
    if not stage.can_widen:
        return f"{bound}: it is a def on the loop, one call at a time; give on='thread' or on='process'"
    wider = f"width={2 * stage.width}"
    if after is None and stage.width == 1:
        return (
            f"{bound}, and computes all the time: give on='process' if the function holds the interpreter's lock, "
            f"as Python code does; {wider} helps only if it releases it"
        )
    if after is None:
        return (
            f"{bound}, and its {stage.width} threads compute no more than one would, so they may share the "
            f"interpreter's lock: give on='process'; {wider} would not help"
        )
    if after.name == CORES and after.items_per_s < 1.1 * least.items_per_s:
        return f"{bound}, and computes on all cores: {wider} would not help; make its function cheaper"
    then = {least.name: "it would still be the bound", CONSUMER: "then the consumer is the bound"}.get(
        after.name,
        "then the cores are the bound" if after.name == CORES else f"then '{after.name}' is the bound",
    )
    return f"{bound}: {wider} would give {after.items_per_s:,.4g} items/s, {then}"


def _remark(stats: Stats, least: Capacity) -> str:
    """What to know about a plan that gave much less than its bound allows."""
    rate = stats.consumer.items / stats.elapsed_s
    if rate >= _IDLE * least.items_per_s:
        return ""
    gave = f"; it gave {rate:,.4g} items/s, less than that"
    if stats.queued_bytes > 0.9 * stats.budget_bytes:
        return f"{gave}, while its bytes were used up: raise budget_bytes"
    return f"{gave}: ask over a time without its start (stats.since), or pass fewer, larger items"
