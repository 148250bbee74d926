"""When a version is taken, and what is in it: the whole run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from trainer.loop import Progress, StepRecord

if TYPE_CHECKING:
    from checkpoint import Checkpointer, Part, Tree, VersionInfo

Parts: TypeAlias = "Mapping[str, Part | Mapping[str, Tree]]"


class VersionSaver:
    """A version every `every` steps and at the end.

    `before` is called before each one begins, `acknowledged` once it is committed.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        parts: Callable[[Progress], Parts],
        *,
        every: int,
        saved_step: int | None,
        before: Callable[[], None],
        acknowledged: Callable[[VersionInfo], None],
    ) -> None:
        self._checkpointer, self._parts, self._every = checkpointer, parts, every
        self._saved_step, self._before, self._acknowledged = saved_step, before, acknowledged
        self._heard = checkpointer.wait()
        self._summary: dict[str, float] = {}

    def after(self, record: StepRecord) -> None:
        self._summary = {"loss": record.result.loss}
        if record.progress.step % self._every == 0:
            self._save(record.progress)

    def finish(self, progress: Progress) -> None:
        if progress.step != self._saved_step:
            self._save(progress)
        self._hear()

    def _save(self, progress: Progress) -> None:
        self._hear()
        summary = {**self._summary, "position": progress.position, "tokens": progress.tokens}
        self._before()
        self._checkpointer.save(progress.step, self._parts(progress), summary)
        self._saved_step = progress.step

    def _hear(self) -> None:
        # One save is in flight at most, and a later one would wait for it anyway.
        version = self._checkpointer.wait()
        if version is not None and version != self._heard:
            self._heard = version
            self._acknowledged(version)
