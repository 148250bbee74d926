"""What a run leaves behind beside its versions, and what it says: by rank 0 alone."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console

from checkpoint import VersionInfo
from trainer.config import RunConfig, to_toml
from trainer.console import shown
from trainer.errors import TrainingFailed
from trainer.evaluation import perplexity
from trainer.folder import RunFolder, RunLog
from trainer.loop import Observer, Progress
from trainer.observers import ConsoleLine, MetricsFile
from trainer.resume import Origin


class Records(Protocol):
    observers: Sequence[Observer]

    def began(self, origin: Origin, about: Sequence[str]) -> None: ...
    def sync(self) -> None:
        """Make durable what has been recorded: before a version, which must not be ahead of it."""
        ...

    def version(self, info: VersionInfo) -> None: ...
    def evaluated(self, step: int, loss: float, tokens: int) -> None: ...
    def ended(self, progress: Progress, reason: str) -> None: ...
    def failed(self, error: Exception) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NoRecords:
    """Of every rank but the first."""

    observers: Sequence[Observer] = ()

    def began(self, origin: Origin, about: Sequence[str]) -> None:
        pass

    def sync(self) -> None:
        pass

    def version(self, info: VersionInfo) -> None:
        pass

    def evaluated(self, step: int, loss: float, tokens: int) -> None:
        pass

    def ended(self, progress: Progress, reason: str) -> None:
        pass

    def failed(self, error: Exception) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class FolderRecords:
    """The run's folder and the console. Making it brings the folder to where the run goes on from."""

    def __init__(self, folder: RunFolder, config: RunConfig, step: int, console: Console) -> None:
        self._config, self._console = config, console
        folder.write_config(to_toml(config))
        folder.cut_metrics(step)
        with ExitStack() as files:
            self._log = files.enter_context(closing(RunLog(folder, uuid.uuid4().hex[:12], rank=0)))
            self._metrics = files.enter_context(
                closing(MetricsFile(folder.metrics, sample_ids=config.log.sample_ids))
            )
            self._files = files.pop_all()
        line = ConsoleLine(console, steps=config.train.steps, every=config.log.every_steps)
        self.observers: Sequence[Observer] = (self._metrics, line)

    def began(self, origin: Origin, about: Sequence[str]) -> None:
        config = self._config
        begun = (
            "a new run"
            if origin.version is None
            else f"resuming from version {origin.version} at step {origin.progress.step}"
        )
        changed = [str(change) for change in origin.changed]
        self._log.event(
            "start",
            version=origin.version,
            step=origin.progress.step,
            changed=[*changed],
            warnings=[*origin.warnings],
        )
        self._say(f"run {shown(config.run.dir)}: {begun}, to step {config.train.steps}")
        for line in about:
            self._say(line)
        for change in changed:
            self._say(f"changed since the version: {change}")
        for warning in origin.warnings:
            self._say(f"warning: {warning}")

    def sync(self) -> None:
        self._metrics.sync()

    def version(self, info: VersionInfo) -> None:
        self._log.event("version", version=info.version, step=info.step, new_bytes=info.new_bytes)
        self._say(
            f"version {info.version} at step {info.step}: "
            f"{info.new_bytes:,} new bytes of {info.total_bytes:,}"
        )

    def evaluated(self, step: int, loss: float, tokens: int) -> None:
        self._log.event("evaluation", step=step, loss=loss, perplexity=perplexity(loss), tokens=tokens)
        self._say(f"evaluation at step {step}: loss {loss:.4f}, perplexity {perplexity(loss):,.2f}")

    def ended(self, progress: Progress, reason: str) -> None:
        self._log.event("end", step=progress.step, reason=reason)
        self._say(f"{reason}: step {progress.step}, {progress.tokens:,} tokens trained")

    def failed(self, error: Exception) -> None:
        # Where the disk is full there is nowhere to say it but the console, which the error reaches anyway.
        with suppress(TrainingFailed):
            self._log.event("failed", error=f"{type(error).__name__}: {error}")

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()
