"""The trainer in processes of its own, for tests that kill it or look at how it ends.

A fork server imports torch once; each run is a real process forked from it, so that a start costs milliseconds and
a SIGKILL is a real one.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from checkpoint import Store
from checkpoint.disk import Disk
from tests.corpora import random_documents, write_corpus

CONFIG = """\
[run]
dir = "{run}"
seed = 7
threads = 1
[data]
corpus = "{corpus}"
seq_len = 16
[model]
layers = 2
heads = 2
width = 32
dropout = 0.1
[optim]
lr = 1e-2
warmup_steps = 3
[train]
steps = {steps}
global_batch = 8
micro_batch = 4
[checkpoint]
every_steps = 3
[log]
every_steps = 5
sample_ids = true
"""
STEPS = 14
SAMPLES = 32
"""Of the corpus: 4 steps of 8 make an epoch, so a run of 14 steps crosses three epoch ends."""


def write_config(folder: Path, *, run: str = "run", steps: int = STEPS) -> Path:
    """A corpus (made where it is missing) and run.toml in `folder`; returns the latter."""
    corpus = folder / "corpus"
    if not corpus.exists():
        lengths = [11, 40, 3, 28, 60, 7, 19, 90, 2, 33, 70, 54, 21, 49, 25, 7]
        assert SAMPLES * 16 <= sum(lengths) < (SAMPLES + 1) * 16
        write_corpus(corpus, random_documents(lengths, vocab_size=64), vocab_size=64)
    file = folder / f"{run}.toml"
    file.write_text(CONFIG.format(run=folder / run, corpus=corpus, steps=steps))
    return file


@dataclass(frozen=True)
class KillAfterOperation:
    """Dies by SIGKILL right after the `count`-th operation on the version store; 0: never. Names them in `record`."""

    count: int
    record: Path

    def __call__(self) -> None:
        import trainer.run

        disk = _DyingDisk(self.count, self.record)
        trainer.run.Checkpointer = functools.partial(trainer.run.Checkpointer, disk=disk)  # type: ignore[misc,assignment]


@dataclass(frozen=True)
class SignalAfterStep:
    """Gets a signal when the line of `step` has been written (by rank 0), before anything is saved."""

    step: int
    number: signal.Signals = signal.SIGKILL

    def __call__(self) -> None:
        from trainer.loop import StepRecord
        from trainer.saver import VersionSaver

        after = VersionSaver.after

        def signalled(saver: VersionSaver, record: StepRecord) -> None:
            if record.progress.step == self.step:
                os.kill(os.getpid(), self.number)
            after(saver, record)

        VersionSaver.after = signalled  # type: ignore[method-assign]


class _DyingDisk(Disk):
    def __init__(self, count: int, record: Path) -> None:
        self._left = count
        self._record = record.open("w", buffering=1)

    def __getattribute__(self, name: str) -> object:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found

        def counted(*args: object, **kwargs: object) -> object:
            result = found(*args, **kwargs)
            self._record.write(f"{name}\n")
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted


def start(
    arguments: Sequence[str],
    output: Path,
    hook: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> BaseProcess:
    """`python -m trainer ARGUMENTS`, its output to a file."""
    context = multiprocessing.get_context("forkserver")
    # torch._dynamo: the first optimizer of a process imports it, and that takes longer than a whole run here.
    context.set_forkserver_preload(["trainer.__main__", "tests.trainer_process", "torch._dynamo"])
    process = context.Process(
        target=_main, args=(list(arguments), str(output), hook, dict(environment or {}))
    )
    process.start()
    return process


def _main(
    arguments: list[str], output: str, hook: Callable[[], None] | None, environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    from trainer.__main__ import main
    from trainer.entry import guarded

    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - the descriptor itself
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    if hook is not None:
        hook()
    code = guarded(lambda: main(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    raise SystemExit(code)


@dataclass(frozen=True)
class Ended:
    code: int | None
    output: str


def finished(process: BaseProcess, output: Path, timeout: float = 120.0) -> Ended:
    process.join(timeout)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    process.close()
    # A process killed early enough has not opened it.
    return Ended(code, output.read_text() if output.exists() else "")


def trained(file: Path, *arguments: str, hook: Callable[[], None] | None = None) -> Ended:
    """Run the trainer on `file` to its end."""
    output = file.with_suffix(".out")
    return finished(start([str(file), *arguments], output, hook), output)


def launch(
    file: Path, size: int, *arguments: str, hooks: Mapping[int, Callable[[], None]] | None = None
) -> list[BaseProcess]:
    """The trainer on `size` ranks, started as torchrun would; each writes FILE.RANK.out."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    return [
        start(
            [str(file), *arguments],
            file.with_suffix(f".{rank}.out"),
            (hooks or {}).get(rank),
            {**address, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(size)
    ]


def ended(processes: Sequence[BaseProcess], file: Path, timeout: float = 120.0) -> list[Ended]:
    """All ranks, each to its end; one that is still there after `timeout` seconds is killed and has no code."""
    return [
        finished(process, file.with_suffix(f".{rank}.out"), timeout) for rank, process in enumerate(processes)
    ]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass(frozen=True)
class Outcome:
    """What a run came to: all that must be equal, bit for bit, however often it was killed."""

    weights: str
    lines: list[dict[str, object]]


TIMES = ("tokens_per_s", "seconds", "phases", "time", "comms_s")


def outcome(run: Path, step: int = STEPS) -> Outcome:
    store = Store(run / "versions")
    newest = [info for info in store.list() if info.step == step][-1]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return Outcome(
        store.digest(newest.version, ["model", "optimizer"]),
        [{key: value for key, value in line.items() if key not in TIMES} for line in lines],
    )
