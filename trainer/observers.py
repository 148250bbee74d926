"""Who looks on: metrics.jsonl and the console. An observer is one call with a frozen record."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from pipeline import JSON
from trainer.folder import JsonLines
from trainer.loop import StepRecord


class MetricsFile:
    """Every step as a line of metrics.jsonl."""

    def __init__(self, path: Path, *, sample_ids: bool) -> None:
        self._lines, self._sample_ids = JsonLines(path), sample_ids

    def __call__(self, record: StepRecord) -> None:
        result, progress = record.result, record.progress
        line: dict[str, JSON] = {
            "step": progress.step,
            "position": progress.position,
            "loss": result.loss,
            "lr": result.lr,
            "grad_norm": result.grad_norm,
            "tokens": result.trained_tokens,
            "padded_tokens": result.padded_tokens,
            "tokens_total": progress.tokens,
            "tokens_per_s": round(result.trained_tokens / record.seconds, 1),
            "seconds": round(record.seconds, 6),
            "comms_s": round(result.comms.total_s, 6),
            "comms_bytes": result.comms.bytes,
            "phases": {name: round(seconds, 6) for name, seconds in record.phases.items()},
            "time": round(time.time(), 3),
        }
        if self._sample_ids:
            line["samples"] = list(result.samples)
        self._lines.write(line)

    def sync(self) -> None:
        self._lines.sync()

    def close(self) -> None:
        self._lines.close()


class ConsoleLine:
    """A line every few steps: rates over the steps since the line before."""

    def __init__(self, console: Console, *, steps: int, every: int) -> None:
        self._console, self._steps, self._every = console, steps, every
        self._tokens, self._seconds, self._waited = 0, 0.0, 0.0

    def __call__(self, record: StepRecord) -> None:
        step = record.progress.step
        self._tokens += record.result.trained_tokens
        self._seconds += record.seconds
        self._waited += record.phases["data_wait"]
        if step % self._every and step != self._steps:
            return
        left = (self._steps - step) * record.seconds
        self._console.print(
            f"step {step:>{len(str(self._steps))}}/{self._steps}  loss {record.result.loss:.4f}  "
            f"lr {record.result.lr:.2e}  {self._tokens / self._seconds:,.0f} tokens/s  "
            f"data wait {self._waited / self._seconds:.1%}  {left:.0f} s left",
            soft_wrap=True,
            highlight=False,
        )
        self._tokens, self._seconds, self._waited = 0, 0.0, 0.0
