"""When versions are taken, and what comes before them."""

from __future__ import annotations

from pathlib import Path

import torch

from checkpoint import Checkpointer, VersionInfo
from trainer.loop import Progress, StepRecord, StepResult
from trainer.saver import Parts, VersionSaver


def record(step: int) -> StepRecord:
    progress = Progress(step=step, position=8 * step, tokens=100 * step, feed={"position": 8 * step})
    return StepRecord(progress, StepResult(1.0 / step, 1.0, 0.1, 100, 0, [], {}), 0.1, {})


def run(
    folder: Path, *, every: int, steps: int, saved_step: int | None = None
) -> tuple[list[str], list[VersionInfo]]:
    events: list[str] = []
    heard: list[VersionInfo] = []

    def parts(progress: Progress) -> Parts:
        events.append(f"parts at {progress.step}")
        return {"model": {"weight": torch.full((4,), float(progress.step))}}

    with Checkpointer(folder) as checkpointer:
        saver = VersionSaver(
            checkpointer,
            parts,
            every=every,
            saved_step=saved_step,
            before=lambda: events.append("records synced"),
            acknowledged=heard.append,
        )
        for step in range(1, steps + 1):
            saver.after(record(step))
        saver.finish(record(steps).progress)
    return events, heard


def test_records_are_synced_before_each_version_begins(tmp_path: Path) -> None:
    events, _ = run(tmp_path / "v", every=2, steps=4)
    assert events == ["records synced", "parts at 2", "records synced", "parts at 4"]


def test_a_version_every_few_steps_and_at_the_end_each_heard_of_once(tmp_path: Path) -> None:
    _, heard = run(tmp_path / "v", every=3, steps=7)
    assert [(info.version, info.step) for info in heard] == [(1, 3), (2, 6), (3, 7)]
    assert heard[-1].summary["position"] == 56
    assert heard[-1].summary["loss"] == 1.0 / 7


def test_an_end_that_is_saved_already_is_not_saved_again(tmp_path: Path) -> None:
    _, heard = run(tmp_path / "v", every=100, steps=5, saved_step=5)
    assert heard == []
