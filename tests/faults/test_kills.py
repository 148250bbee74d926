"""Killed at any instant, the resumed run sees the same samples and reaches the same weights, bit for bit."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint import Store
from tests.trainer_process import (
    SAMPLES,
    STEPS,
    KillAfterOperation,
    Outcome,
    SignalAfterStep,
    finished,
    outcome,
    start,
    trained,
    write_config,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def uninterrupted(place: Path) -> Outcome:
    ended = trained(write_config(place, run="reference"))
    assert ended.code == 0, ended.output
    return outcome(place / "reference")


@pytest.fixture(scope="module")
def seconds(place: Path, uninterrupted: Outcome) -> float:
    """How long a run takes from its start, for moments to be drawn from."""
    began = time.monotonic()
    assert trained(write_config(place, run="timed")).code == 0
    return time.monotonic() - began


def resumed(file: Path) -> Outcome:
    ended = trained(file)
    assert ended.code == 0, ended.output
    return outcome(file.with_suffix(""))


def test_the_reference_crosses_epochs_and_learns_its_order(uninterrupted: Outcome) -> None:
    assert [line["step"] for line in uninterrupted.lines] == list(range(1, STEPS + 1))
    samples = [s for line in uninterrupted.lines for s in line["samples"]]  # type: ignore[attr-defined]
    for epoch in range(len(samples) // SAMPLES):
        assert sorted(samples[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))


def kill_at_random_moments(place: Path, seconds: float, count: int, seed: int) -> list[Outcome]:
    moments = random.Random(seed)
    outcomes = []
    for number in range(count):
        file = write_config(place, run=f"random-{seed}-{number}")
        process = start([str(file)], file.with_suffix(".out"))
        process.join(moments.uniform(0, seconds))  # the moment itself is what is tested, nothing waits for it
        process.kill()
        finished(process, file.with_suffix(".out"))
        outcomes.append(resumed(file))
    return outcomes


def test_killed_at_20_random_moments(place: Path, seconds: float, uninterrupted: Outcome) -> None:
    for number, ended in enumerate(kill_at_random_moments(place, seconds, 20, seed=1)):
        assert ended == uninterrupted, f"kill {number}"


@pytest.mark.long
def test_killed_at_500_random_moments(place: Path, seconds: float, uninterrupted: Outcome) -> None:
    for number, ended in enumerate(kill_at_random_moments(place, seconds, 500, seed=2)):
        assert ended == uninterrupted, f"kill {number}"


@pytest.fixture(scope="module")
def operations(place: Path) -> list[str]:
    """The operations on the version store that a whole run makes, in order."""
    record = place / "operations"
    assert trained(write_config(place, run="counted"), hook=KillAfterOperation(0, record)).code == 0
    return record.read_text().splitlines()


def kill_after_operations(place: Path, counts: range, uninterrupted: Outcome) -> None:
    for count in counts:
        file = write_config(place, run=f"operation-{count}-of-{counts.stop}")
        killed = trained(file, hook=KillAfterOperation(count, place / "record"))
        assert killed.code == -signal.SIGKILL, f"{count}: {killed.output}"
        assert resumed(file) == uninterrupted, f"killed after operation {count}"


def test_killed_within_a_save(place: Path, operations: list[str], uninterrupted: Outcome) -> None:
    """After every single operation of the second save: packs written, synced, renamed; the version linked or not."""
    commits = [number for number, name in enumerate(operations, start=1) if name == "link"]
    assert len(commits) == len([*range(3, STEPS, 3), STEPS])
    kill_after_operations(place, range(commits[0], commits[1] + 1), uninterrupted)


@pytest.mark.slow
def test_killed_after_every_operation_on_the_store(
    place: Path, operations: list[str], uninterrupted: Outcome
) -> None:
    # The last one closes the store: after it there is nothing left to kill.
    kill_after_operations(place, range(1, len(operations)), uninterrupted)


@pytest.mark.parametrize("step", [4, 8, 12])
def test_epoch_boundary(place: Path, uninterrupted: Outcome, step: int) -> None:
    """Killed exactly at an epoch's end: the next epoch is neither skipped nor repeated."""
    assert step * 8 % SAMPLES == 0
    file = write_config(place, run=f"epoch-{step}")
    assert trained(file, hook=SignalAfterStep(step)).code == -signal.SIGKILL
    assert resumed(file) == uninterrupted


def test_a_version_at_an_epochs_end_goes_on_with_the_next(place: Path, uninterrupted: Outcome) -> None:
    file = write_config(place, run="epoch-version")
    assert trained(file, "--train.steps", "4", "--optim.decay_steps", str(STEPS)).code == 0
    assert Store(place / "epoch-version" / "versions").list()[-1].step == 4
    assert resumed(file) == uninterrupted


def test_killed_twice(place: Path, uninterrupted: Outcome) -> None:
    """In the middle of the second epoch, resumed, and again."""
    file = write_config(place, run="twice")
    assert trained(file, hook=SignalAfterStep(6)).code == -signal.SIGKILL
    assert trained(file, hook=SignalAfterStep(7)).code == -signal.SIGKILL
    assert resumed(file) == uninterrupted


def test_killed_before_the_first_version(place: Path, uninterrupted: Outcome) -> None:
    file = write_config(place, run="early")
    assert trained(file, hook=SignalAfterStep(2)).code == -signal.SIGKILL
    assert not Store(place / "early" / "versions").list()
    assert resumed(file) == uninterrupted


def test_sigterm_saves_and_exits_0(place: Path, uninterrupted: Outcome) -> None:
    """The first signal asks: the step at hand is finished, saved, and the run ends well."""
    file = write_config(place, run="sigterm")
    assert trained(file, hook=SignalAfterStep(5, signal.SIGTERM)).code == 0
    assert Store(place / "sigterm" / "versions").list()[-1].step == 5
    assert resumed(file) == uninterrupted
