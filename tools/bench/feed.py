"""Feeding against the bare memory-mapped loop, and the data wait beside a real training step.

headrace: the prefetching feed, ids and labels as tensors. inline: the same feed in the consumer's thread. limit: rows
of a flat memory-mapped file in a random order, copied into one batch, by one thread. All: 8 x 2048 tokens a batch, a
consumer that only sums both tensors, start-up left out of the rate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from stages.corpus import LocalCorpus, open_corpus
from stages.feed import FeedSpec, tensor_feed
from tools.bench import text
from tools.bench.sides import LIMIT, OURS, Round, Settings, Side, Sides
from trainer.engine import Single
from trainer.loop import Progress, StepRecord, train
from trainer.model import GPT, ModelConfig
from trainer.optim import OptimConfig, adamw
from trainer.ranks import Alone
from trainer.run import grouped
from trainer.step import TorchStep

SEQ_LEN, BATCH, BATCHES = 2048, 8, 8000
TRAINED_STEPS = 6


@contextmanager
def bench(settings: Settings) -> Iterator[Sides]:
    torch.set_num_threads(settings.workers)
    with open_corpus(text.corpus(settings)) as corpus:
        flat = _flat(corpus, settings.cache / "corpus.bin")
        yield Sides(
            "tokens/s",
            {OURS: _feed(corpus, prefetch=True), LIMIT: _bare(flat), "inline": _feed(corpus, prefetch=False)},
        )


def _flat(corpus: LocalCorpus, path: Path) -> Path:
    """The corpus's tokens end to end in one file."""
    with path.open("wb") as file:
        for document in range(len(corpus)):
            file.write(corpus.view(document, 0, int(corpus.lengths[document])).tobytes())
    return path


def _timed(batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> float:
    next(batches)
    began = time.perf_counter()
    for ids, labels in islice(batches, BATCHES):
        ids.sum()
        labels.sum()
    return BATCHES * BATCH * SEQ_LEN / (time.perf_counter() - began)


def _feed(corpus: LocalCorpus, *, prefetch: bool) -> Side:
    spec = FeedSpec(seq_len=SEQ_LEN, batch_size=BATCH, columns=("input_ids", "labels"), prefetch=prefetch)

    def round_() -> Round:
        feed = tensor_feed(corpus, spec)
        rate = _timed((batch["input_ids"], batch["labels"]) for batch in feed)
        return Round(rate, {"data_wait_share": _data_wait(corpus)} if prefetch else {})

    return round_


def _bare(flat: Path) -> Side:
    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        tokens = np.memmap(flat, np.uint16, "r")
        samples = (len(tokens) - 1) // SEQ_LEN
        for epoch in range(1 << 30):
            order = np.random.default_rng([0, epoch]).permutation(samples)
            for k in range(0, samples - BATCH + 1, BATCH):
                rows = np.empty((BATCH, SEQ_LEN + 1), np.int64)
                for row, sample in enumerate(order[k : k + BATCH].tolist()):
                    rows[row] = tokens[sample * SEQ_LEN : sample * SEQ_LEN + SEQ_LEN + 1]
                batch = torch.from_numpy(rows)
                yield batch[:, :-1], batch[:, 1:]

    return lambda: Round(_timed(batches()))


class _Unsaved:
    """A saver of no versions, that only adds up the time of the steps it hears of."""

    def __init__(self) -> None:
        self.waited, self.seconds = 0.0, 0.0

    def after(self, record: StepRecord) -> None:
        # The first step holds the feed's start and torch's warm-up.
        if record.progress.step > 1:
            self.waited += record.phases["data_wait"]
            self.seconds += record.seconds

    def finish(self, progress: Progress) -> None:
        pass


def _data_wait(corpus: LocalCorpus) -> float:
    """The share of a training step that is spent waiting for its batch: a GPT of 2 M parameters, 2 x 512 tokens."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(layers=2, heads=4, width=64), corpus.meta.tokenizer.vocab_size)
    config = OptimConfig()
    items = grouped(tensor_feed(corpus, FeedSpec(seq_len=512, batch_size=2)).items(), 1)
    heard = _Unsaved()

    def enough(progress: Progress) -> bool:
        return progress.step >= TRAINED_STEPS

    ranks = Alone(torch.device("cpu"))
    step = TorchStep(Single(model), model, adamw(model, config), config, ranks=ranks, seed=0)
    start = Progress(step=0, position=0, tokens=0, feed={})
    train(
        items,
        step,
        progress=start,
        until=enough,
        saver=heard,
    )
    items.close()
    return heard.waited / heard.seconds
