"""Loss on a held-out corpus, every few steps: an observer that all ranks hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from stages.feed import Feed
from trainer.engine import logits
from trainer.loop import Batch, StepRecord
from trainer.ranks import Ranks
from trainer.section import FREE, Section
from trainer.step import Precision, autocast, summed_loss, trained_tokens


class EvalConfig(Section):
    """[eval]: held-out loss. Weights do not depend on it."""

    corpus: Annotated[Path | None, FREE] = None
    """A corpus packed with the same tokenizer; none: no evaluation."""
    every_steps: Annotated[int, FREE] = Field(default=100, ge=1)
    batches: Annotated[int, FREE] = Field(default=20, ge=1)
    """Micro batches in each evaluation, over all ranks rounded up to a whole one for each."""


class Evaluation:
    """Evaluates on the same first batches each time; `report` hears of step, loss and tokens on every rank.

    Ranks look between two batches whether one of them was asked to stop: a long evaluation must not eat up the grace
    time of a SIGTERM. Its result is then not reported.
    """

    def __init__(
        self,
        model: nn.Module,
        feed: Callable[[], Feed[Batch]],
        ranks: Ranks,
        config: EvalConfig,
        *,
        precision: Precision,
        stopping: Callable[[], bool],
        report: Callable[[int, float, int], None],
    ) -> None:
        self._model, self._feed, self._ranks, self._config = model, feed, ranks, config
        self._precision, self._stopping, self._report = precision, stopping, report

    def __call__(self, record: StepRecord) -> None:
        if record.progress.step % self._config.every_steps:
            return
        own = -(-self._config.batches // self._ranks.size)
        total, tokens = 0.0, 0
        # The model itself and not the engine: another forward of DDP's would wait for a backward.
        self._model.eval()
        try:
            with torch.no_grad():
                for batch in islice(self._feed(), own):
                    if self._ranks.any(self._stopping()):
                        return
                    with autocast(self._precision, self._ranks.device):
                        output = self._model(input_ids=batch["input_ids"], position_ids=batch["position_ids"])
                    total += float(summed_loss(logits(output), batch["labels"]))
                    tokens += trained_tokens(batch)
        finally:
            self._model.train()
        total, count = self._ranks.sum([total, tokens])
        self._report(record.progress.step, total / max(count, 1), int(count))


def perplexity(loss: float) -> float:
    """Of a mean loss in nats; infinite where it does not fit a float."""
    return math.exp(loss) if loss < 700 else math.inf
