"""`make demo`: the main job from raw text to a restored version, every claim checked.

standard library ─► pack ─► train ───────────────────────► reference run
                            train ─► SIGKILL ─► resume ──► same samples, same bits
                                      └─► freeze, train on ──► versions that cost a fraction
                                            └─► restore ─► train from it ──► same bits as the reference
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import tyro
from rich.console import Console
from rich.table import Table

from checkpoint import Store, VersionInfo
from stages.corpus import open_corpus
from trainer.entry import DONE, FAILED, guarded

CONFIG = """\
[data]
corpus = "{corpus}"
seq_len = 128

[model]
layers = 6
heads = 4
width = 128

[optim]
lr = 2e-3
warmup_steps = 10

[train]
steps = {steps}
global_batch = 16
micro_batch = 8

[checkpoint]
every_steps = {every}

[log]
every_steps = 1
sample_ids = true

[run]
dir = "{run}"
seed = 1234
"""
STEPS, EVERY, FROZEN_STEPS = 120, 15, 30


class Line(TypedDict):
    """A line of metrics.jsonl, as far as it is looked at here."""

    step: int
    loss: float
    tokens: int
    samples: list[int]


@dataclass(frozen=True)
class Arguments:
    """Pack the text of Python's standard library, train on it, kill, resume, freeze, restore, and check every claim."""

    dir: Path = Path(".demo")
    """Where everything goes; the corpus in it is used again by the next demo."""
    steps: int = STEPS
    """Optimizer steps of the run that is killed and compared (about a minute)."""


@dataclass
class Claims:
    """What was claimed, and whether it held."""

    console: Console
    broken: list[str] = field(default_factory=list)

    def check(self, claim: str, held: bool) -> None:
        self.console.print(
            f"  {'[green]holds[/]' if held else '[red]BROKEN[/]'}  {claim}", highlight=False, soft_wrap=True
        )
        if not held:
            self.broken.append(claim)


class Shell:
    """Runs the project's own commands as a user would, in processes of their own."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def run(self, *arguments: str, shown: int = 3) -> None:
        """Run to the end, showing the last lines; raises CalledProcessError where the command fails."""
        process = self._start(arguments)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        for line in lines[-shown:]:
            self._console.print(f"  {line}", style="dim", highlight=False, markup=False, soft_wrap=True)
        if process.wait() != DONE:
            raise DemoFailed(
                f"`{' '.join(arguments)}` ended with exit code {process.returncode}:\n" + "\n".join(lines)
            )

    def kill_at(self, step: int, *arguments: str) -> int:
        """Start, send SIGKILL once the console shows `step`, and return the exit code."""
        process = self._start(arguments)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step ") and int(line.split()[1].split("/")[0]) >= step:
                process.send_signal(signal.SIGKILL)
                self._console.print(
                    f"  {line.rstrip()}   <- SIGKILL", style="dim", highlight=False, soft_wrap=True
                )
                break
        process.stdout.close()
        return process.wait()

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        self._console.print(
            f"$ python -m {' '.join(arguments)}", highlight=False, markup=False, soft_wrap=True
        )
        command = [sys.executable, "-m", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class DemoFailed(Exception):
    exit_code = FAILED


def metrics(run: Path) -> list[Line]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def version_at(run: Path, step: int) -> VersionInfo:
    """The newest version of `run` at `step`."""
    return [info for info in Store(run / "versions").list() if info.step == step][-1]


def digest(run: Path, version: int, *parts: str) -> str:
    """Of the tensors in `parts`: equal exactly where every bit of every tensor is."""
    return Store(run / "versions").digest(version, parts)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = tyro.cli(Arguments, args=argv, prog="python -m tools.demo")
    console = Console()
    shell, claims = Shell(console), Claims(console)
    began = time.monotonic()
    folder, steps = arguments.dir, arguments.steps
    corpus, reference, killed = folder / "corpus", folder / "reference", folder / "killed"
    folder.mkdir(parents=True, exist_ok=True)
    for run in (reference, killed):
        shutil.rmtree(run, ignore_errors=True)

    console.rule("1. pack the text of Python's standard library")
    library = sysconfig.get_path("stdlib")
    shell.run(
        *(
            "tools.pack",
            library,
            "--glob",
            "*.py",
            "--exclude",
            "site-packages/*",
            "--exclude",
            "dist-packages/*",
        ),
        *("--on-bad", "quarantine", "--train-tokenizer", "bpe:8192", "--out", str(corpus)),
        shown=6,
    )
    with open_corpus(corpus) as packed:
        documents, tokens = packed.meta.documents, packed.meta.tokens
        text_bytes = sum(given.bytes for given in packed.meta.inputs)
    claims.check(f"{text_bytes / 1e6:.1f} MB of text is 12 MB or more", text_bytes >= 12e6)

    file = folder / "run.toml"
    file.write_text(CONFIG.format(corpus=corpus, run=killed, steps=steps, every=EVERY), "utf-8")

    console.rule("2. train without interruption: the reference")
    shell.run("trainer", str(file), "--run.dir", str(reference))

    console.rule("3. train, kill -9 in mid-epoch, resume")
    at = random.SystemRandom().randrange(steps // 4, steps - 5)
    claims.check(
        "the killed trainer ended by SIGKILL", shell.kill_at(at, "trainer", str(file)) == -signal.SIGKILL
    )
    shell.run("trainer", str(file))
    expected, got = metrics(reference), metrics(killed)
    claims.check(
        f"{steps} steps, each with the same sample ids as the reference",
        [line["samples"] for line in got] == [line["samples"] for line in expected] and len(got) == steps,
    )
    claims.check(
        "every loss is the same, bit for bit",
        [line["loss"] for line in got] == [line["loss"] for line in expected],
    )
    of_reference = digest(reference, version_at(reference, steps).version, "model", "optimizer")
    of_killed = digest(killed, version_at(killed, steps).version, "model", "optimizer")
    claims.check("final weights and optimizer state are the same, bit for bit", of_reference == of_killed)

    console.rule("4. freeze all but two layers and train on: versions that cost a fraction")
    further = steps + FROZEN_STEPS
    shell.run(
        *("trainer", str(file), "--train.steps", str(further), "--freeze.patterns", "*"),
        *("--freeze.unless", "blocks.4.*", "blocks.5.*"),
        *("--allow-change", "freeze.patterns", "--allow-change", "freeze.unless"),
    )
    full, frozen = version_at(killed, steps), version_at(killed, further)
    share = frozen.new_bytes / full.new_bytes
    claims.check(f"a version of the frozen run costs {share:.0%} of a full one, under half", share < 0.5)

    console.rule("5. restore an early version and train from it")
    early, again = version_at(killed, 2 * EVERY), 4 * EVERY
    shell.run("tools.restore", str(killed), "--version", str(early.version))
    shell.run("trainer", str(file), "--train.steps", str(again))
    claims.check(
        f"from step {early.step} to {again} again: the same bits as the reference",
        digest(killed, version_at(killed, again).version, "model", "optimizer")
        == digest(reference, version_at(reference, again).version, "model", "optimizer"),
    )
    shell.run("tools.versions", "verify", str(killed), "--all", shown=1)

    console.rule("what happened")
    rows = Table(show_header=False)
    rows.add_row("tokens packed", f"{tokens:,} of {documents:,} documents")
    rows.add_row("loss, first and last step", f"{expected[0]['loss']:.3f} -> {expected[-1]['loss']:.3f}")
    rows.add_row("digest of the reference's end", of_reference[:32])
    rows.add_row("digest of the killed run's end", of_killed[:32])
    rows.add_row("seconds", f"{time.monotonic() - began:.0f}")
    console.print(rows)
    versions = Table(title=f"versions of {killed}")
    for column in ("version", "step", "new bytes", "total bytes"):
        versions.add_column(column, justify="right")
    for info in Store(killed / "versions").list():
        versions.add_row(str(info.version), str(info.step), f"{info.new_bytes:,}", f"{info.total_bytes:,}")
    console.print(versions)
    if claims.broken:
        console.print(f"[red]{len(claims.broken)} claims did not hold:[/]", *claims.broken, sep="\n  ")
        return FAILED
    console.print("[green]every claim held[/]")
    return DONE


if __name__ == "__main__":
    raise SystemExit(guarded(main))
