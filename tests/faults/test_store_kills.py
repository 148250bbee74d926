"""A saving process is killed: what was acknowledged survives, what was not is absent or whole."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from checkpoint import Checkpointer, NoStore, Store, StoreLocked
from tests.checkpoint.disks import Watched
from tests.checkpoint.states import same, taken
from tests.faults.store_zygote import state

SEED = 3


class Zygote:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.store_zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.requests: IO[str] = self._process.stdin
        self.answers: IO[str] = self._process.stdout
        self.saver: int | None = None

    def start(self, path: Path, saves: int, **more: object) -> None:
        """Start a saver; `saver` is its process until it has ended."""
        request = {"path": str(path), "seed": SEED, "saves": saves, **more}
        self.requests.write(json.dumps(request) + "\n")
        self.requests.flush()
        self._early: list[dict[str, object]] = []
        while "pid" not in (line := self.answer()):
            self._early.append(line)
        self.saver = int(str(line["pid"]))

    def answer(self) -> dict[str, object]:
        """The next thing that the saver says."""
        if self.saver is not None and self._early:
            return self._early.pop(0)
        found: dict[str, object] = json.loads(self.answers.readline())
        if "ended" in found:
            self.saver = None
        return found

    def kill(self) -> list[dict[str, object]]:
        """Kill the saver, if it has not ended; what it still said."""
        said = []
        if self.saver is not None:
            os.kill(self.saver, signal.SIGKILL)
            while "ended" not in (line := self.answer()):
                said.append(line)
        return said

    def run(self, path: Path, saves: int, **more: object) -> tuple[int, list[dict[str, object]]]:
        """Run a saver to its end: its exit status, and what it said."""
        self.start(path, saves, **more)
        said = []
        while "ended" not in (line := self.answer()):
            said.append(line)
        assert isinstance(line["ended"], int)
        return line["ended"], said

    def close(self) -> None:
        self.requests.close()
        self._process.wait()
        self.answers.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def zygote(running: Zygote) -> Iterator[Zygote]:
    yield running
    running.kill()


def acknowledged(said: list[dict[str, object]]) -> int:
    return max((int(str(line["acknowledged"])) for line in said if "acknowledged" in line), default=0)


def check_survivors(path: Path, least: int) -> None:
    """Every version is whole and as it was saved, none acknowledged is missing, and the next writer goes on."""
    try:
        versions = Store(path).versions()
    except NoStore:
        assert least == 0
        versions = []
    assert list(versions) == list(range(1, len(versions) + 1))
    assert least <= len(versions) <= least + 1
    for version in versions:
        assert Store(path).verify(version).step == version
    with Checkpointer(path, disk=Watched()) as checkpointer:
        assert not [file for file in path.rglob("*") if file.name.endswith(".tmp")]
        assert not list((path / "intents").iterdir())
        for version in versions:
            assert same(taken(checkpointer, version, "a")["a"], state(SEED, version))
        following = len(versions) + 1
        checkpointer.save(following, {"a": state(SEED, following)})
        checkpointer.wait()
        assert same(taken(checkpointer, following, "a")["a"], state(SEED, following))


def test_killed_after_every_operation(zygote: Zygote, tmp_path: Path) -> None:
    for die_after in range(1, 1000):
        path = tmp_path / str(die_after)
        ended, said = zygote.run(path, saves=2, die_after=die_after)
        check_survivors(path, acknowledged(said))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert die_after > 40


def test_killed_at_random_moments(zygote: Zygote, tmp_path: Path) -> None:
    chance = random.Random(5)
    path = tmp_path / "v"
    for _ in range(10):
        zygote.start(path, saves=10_000)
        said = [zygote.answer() for _ in range(chance.randrange(1, 6))]
        # The moment is random within a save: this long after the last word, or at the next one.
        select.select([zygote.answers.fileno()], [], [], chance.random() * 0.004)
        said += zygote.kill()
        check_survivors(path, acknowledged(said))


def test_killed_while_a_forked_child_lives(zygote: Zygote, tmp_path: Path) -> None:
    zygote.start(tmp_path / "v", saves=10_000, orphan=True)
    said: dict[str, object] = {}
    while "orphan" not in said:
        said = zygote.answer()
    with pytest.raises(StoreLocked, match=f"process {zygote.saver}"):
        Checkpointer(tmp_path / "v")
    zygote.kill()
    os.kill(int(str(said["orphan"])), 0)  # alive
    Checkpointer(tmp_path / "v").close()
    os.kill(int(str(said["orphan"])), signal.SIGKILL)


def test_a_real_limit_in_the_middle_of_a_write(zygote: Zygote, tmp_path: Path) -> None:
    path = tmp_path / "v"
    assert zygote.run(path, saves=1)[0] == 0
    before = sorted(path.rglob("*"))
    ended, said = zygote.run(path, saves=1, file_bytes=500)
    assert ended == 0
    assert [line.get("error") for line in said if "error" in line] == ["StoreFull"]
    assert sorted(path.rglob("*")) == before
    check_survivors(path, 1)
