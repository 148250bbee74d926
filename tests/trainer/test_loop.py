"""The loop as a function: what it hands on, in which order, and what it counts."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest
import torch

from pipeline import Item
from trainer.loop import Batch, Progress, StepRecord, StepResult, train
from trainer.run import grouped

START = Progress(step=0, position=0, tokens=0, feed={})


def micro_batches(count: int, size: int = 2) -> Generator[Item[Batch], None, None]:
    for k in range(count):
        ids = torch.arange(k * size, (k + 1) * size)
        yield Item({"sample_ids": ids}, {"position": (k + 1) * size})


class Step:
    def __call__(self, micro_batches: Sequence[Batch], step: int) -> StepResult:
        samples = [int(i) for batch in micro_batches for i in batch["sample_ids"]]
        return StepResult(1.0 / (step + 1), 1.0, 0.1, 10 * len(samples), 0, samples, {"forward": 0.0})


class Tape:
    """Observer and saver in one: what happened, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.records: list[StepRecord] = []

    def __call__(self, record: StepRecord) -> None:
        self.events.append(("observed", record.progress.step))
        self.records.append(record)

    def after(self, record: StepRecord) -> None:
        self.events.append(("saver", record.progress.step))

    def finish(self, progress: Progress) -> None:
        self.events.append(("finished", progress.step))


def trained(steps: int, accumulation: int = 2, progress: Progress = START) -> tuple[Progress, Tape]:
    tape = Tape()
    items = grouped(micro_batches(20), accumulation)
    end = train(
        items, Step(), progress=progress, until=lambda p: p.step >= steps, saver=tape, observers=(tape,)
    )
    return end, tape


def test_progress_is_where_the_consumer_is() -> None:
    end, _ = trained(steps=3)
    assert end == Progress(step=3, position=12, tokens=120, feed={"position": 12})


def test_each_step_gets_its_micro_batches() -> None:
    _, tape = trained(steps=3, accumulation=2)
    assert [list(r.result.samples) for r in tape.records] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_observers_see_a_step_before_it_is_saved() -> None:
    _, tape = trained(steps=2)
    assert tape.events == [("observed", 1), ("saver", 1), ("observed", 2), ("saver", 2), ("finished", 2)]


def test_a_run_that_is_at_its_end_reads_nothing() -> None:
    at_end = Progress(step=5, position=20, tokens=7, feed={})
    end, tape = trained(steps=5, progress=at_end)
    assert end == at_end
    assert tape.events == [("finished", 5)]


def test_phases_fit_into_the_step() -> None:
    _, tape = trained(steps=4)
    for record in tape.records:
        assert set(record.phases) == {"data_wait", "forward", "observers", "checkpoint_stall"}
        assert sum(record.phases.values()) <= record.seconds + 1e-9


def test_an_error_in_a_step_reaches_the_caller() -> None:
    class Broken(Step):
        def __call__(self, micro_batches: Sequence[Batch], step: int) -> StepResult:
            raise ArithmeticError("no")

    tape = Tape()
    with pytest.raises(ArithmeticError):
        train(grouped(micro_batches(4), 1), Broken(), progress=START, until=lambda p: False, saver=tape)
    assert tape.events == []
