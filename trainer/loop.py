"""The loop: a function from batches to progress.

batches ─► step ─► observers ─► saver ─► until?
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from pipeline import Item, State
from trainer.engine import NO_COMMS, Comms

Batch: TypeAlias = "dict[str, Tensor]"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come. What is not in here does not survive a restart."""

    step: int
    """Optimizer steps done."""
    position: int
    """Samples consumed over all ranks."""
    tokens: int
    """Tokens trained, over all ranks: labels that entered a loss."""
    feed: State
    """The feed's state after the last batch used."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step computed; times in seconds by phase."""

    loss: float
    """Mean over the step's trained tokens, over all ranks."""
    grad_norm: float
    """Global norm before clipping."""
    lr: float
    trained_tokens: int
    padded_tokens: int
    """Positions that held padding: never part of a throughput."""
    samples: Sequence[int]
    """Ids of the global batch, in the order of their positions."""
    phases: Mapping[str, float]
    comms: Comms = NO_COMMS
    """What the reduction of gradients took; `phases` has the exposed part of it."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as observers see it. `phases` adds up to at most `seconds`."""

    progress: Progress
    result: StepResult
    seconds: float
    """From the end of the step before to the end of this one, the saving in between included."""
    phases: Mapping[str, float]


class TrainStep(Protocol):
    """Consumes the micro batches of one global batch and updates the model once."""

    def __call__(self, micro_batches: Sequence[Batch], step: int) -> StepResult: ...


class Observer(Protocol):
    def __call__(self, record: StepRecord) -> None: ...


class Trigger(Protocol):
    """Whether the run has come to its end."""

    def __call__(self, progress: Progress) -> bool: ...


class Saver(Protocol):
    def after(self, record: StepRecord) -> None:
        """Called after every step, once its observers have seen it."""
        ...

    def finish(self, progress: Progress) -> None:
        """Called once at the end: what is not saved yet is saved, and waited for."""
        ...


def train(
    batches: Iterator[Item[Sequence[Batch]]],
    step: TrainStep,
    *,
    progress: Progress,
    until: Trigger,
    saver: Saver,
    observers: Sequence[Observer] = (),
) -> Progress:
    """Train from `progress` until `until`. An item holds one step's micro batches and the feed's state after them."""
    ended = time.perf_counter()
    observed = stalled = 0.0
    while not until(progress):
        asked = time.perf_counter()
        item = next(batches)
        waited = time.perf_counter() - asked
        result = step(item.value, progress.step)
        position = item.resume["position"]
        assert isinstance(position, int)
        progress = Progress(progress.step + 1, position, progress.tokens + result.trained_tokens, item.resume)
        now = time.perf_counter()
        phases = {"data_wait": waited, **result.phases, "observers": observed, "checkpoint_stall": stalled}
        record = StepRecord(progress, result, now - ended, phases)
        ended = now
        # Observers first: a version must never be ahead of the metrics, or a kill in between loses a step's line.
        for observe in observers:
            observe(record)
        saving = time.perf_counter()
        observed = saving - now
        saver.after(record)
        stalled = time.perf_counter() - saving
    saver.finish(progress)
    return progress
