"""What `tools.pack` shows while it works: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from stages.corpus.pack import PackProgress

LINE_EVERY_S = 5.0


class Display(Protocol):
    """One pass over the inputs, shown on stderr. Called with each state of it."""

    def __call__(self, progress: PackProgress) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def display(what: str, total_bytes: int) -> Display:
    """`what` names the pass; `total_bytes` is what there is to read."""
    terminal = sys.stderr is not None and sys.stderr.isatty()  # None: closed by the caller (2>&-)
    return Bar(what, total_bytes) if terminal else Lines(what, total_bytes)


@contextmanager
def merge_display() -> Iterator[Callable[[int], None]]:
    """Tokens that a merge has written, counted up on stderr where it is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    with Progress(TextColumn("merge {task.completed:,} tokens"), console=Console(stderr=True)) as shown:
        task = shown.add_task("merge", total=None)
        yield lambda tokens: shown.update(task, completed=tokens)


class Bar:
    def __init__(self, what: str, total_bytes: int) -> None:
        self._rate = _Rate()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(stderr=True),
        )
        self._task: TaskID = self._bar.add_task(what, total=total_bytes, said="")

    def __call__(self, progress: PackProgress) -> None:
        self._bar.update(self._task, completed=progress.read_bytes, said=self._rate.said(progress))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


class Lines:
    def __init__(self, what: str, total_bytes: int, every_s: float = LINE_EVERY_S) -> None:
        self._what, self._total, self._every_s = what, total_bytes, every_s
        self._rate = _Rate()
        self._next_s = every_s

    def __call__(self, progress: PackProgress) -> None:
        elapsed_s = self._rate.elapsed_s()
        if elapsed_s < self._next_s or not progress.read_bytes:
            return
        self._next_s = elapsed_s + self._every_s
        left_s = elapsed_s * max(0, self._total - progress.read_bytes) / progress.read_bytes
        print(
            f"{self._what}: {decimal(progress.read_bytes)} of {decimal(self._total)}, "
            f"{self._rate.said(progress)}, {_clock(left_s)} left",
            file=sys.stderr,
            flush=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Rate:
    def __init__(self) -> None:
        self._began = time.monotonic()

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def said(self, progress: PackProgress) -> str:
        elapsed_s = max(self.elapsed_s(), 1e-9)
        aside = f", {progress.quarantined:,} quarantined" if progress.quarantined else ""
        if not progress.tokens:
            return f"{progress.documents:,} documents{aside}"
        return f"{progress.tokens:,} tokens, {progress.tokens / elapsed_s:,.0f} tokens/s{aside}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
