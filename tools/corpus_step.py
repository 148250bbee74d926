"""Which documents a step of a run reads: computed as the feed computes it, from settings alone.

config.toml ─► Feeding ─► sample_ids ─► pieces
                            the feed's order   packing.spans, against the corpus's bounds
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stages.corpus import CorpusReader
from stages.feed import ENDLESS, Blocks, FeedSpec, Sampler
from stages.packing import Method, Packing
from trainer.entry import MISTAKE


class WrongArguments(Exception):
    exit_code = MISTAKE


@dataclass(frozen=True)
class Feeding:
    """What decides on the samples of every step. Raises WrongArguments."""

    corpus: Path
    seq_len: int
    global_batch: int
    """Samples of a step, over all ranks."""
    seed: int = 0
    packing: Method = "wrapped"
    micro_batch: int | None = None
    """Samples of one forward pass on one rank; None: unknown, so that no rank's share can be told."""
    steps: int | None = None
    """The last step; None: there is none."""
    metrics: Path | None = None
    """The run's metrics.jsonl, which has where each step ended: the batch may have been changed on the way."""

    def __post_init__(self) -> None:
        if not 2 <= self.seq_len < 1 << 31:
            raise WrongArguments(f"--seq-len must be 2 or more and below 2**31, got {self.seq_len}")
        if self.global_batch < 1:
            raise WrongArguments(f"--global-batch must be 1 or more, got {self.global_batch}")
        if not 0 <= self.seed < 1 << 63:
            raise WrongArguments(f"--seed must be in [0, 2**63), got {self.seed}")

    @classmethod
    def of_run(cls, path: Path) -> Feeding:
        """The settings in `path`, a run's folder or its configuration. Raises trainer's ConfigError."""
        # Here, as it imports torch, for which the other commands need not wait.
        from trainer.config import load

        file = path / "config.toml" if path.is_dir() else path
        config = load(file)
        return cls(
            config.data.corpus,
            config.data.seq_len,
            config.train.global_batch,
            config.run.seed,
            config.data.packing,
            config.train.micro_batch,
            config.train.steps,
            file.parent / "metrics.jsonl" if file.name == "config.toml" else None,
        )

    def window(self, step: int) -> tuple[int, int]:
        """The positions [begin, end) of the samples of `step`, counted from 1. Raises WrongArguments."""
        if step < 1:
            raise WrongArguments(f"--step: steps are counted from 1, got {step}")
        if self.steps is not None and step > self.steps:
            raise WrongArguments(f"--step: no step {step}: the run ends with step {self.steps}")
        if step * self.global_batch > ENDLESS:
            raise WrongArguments(f"--step: no step {step}: a feed ends at sample 2**62")
        ends = {0: 0, **(_ends(self.metrics, {step - 1, step}) if self.metrics is not None else {})}
        if step - 1 in ends and ends.get(step, 0) > ends[step - 1]:
            return ends[step - 1], ends[step]
        return (step - 1) * self.global_batch, step * self.global_batch

    def sample_ids(self, packing: Packing, step: int, share: tuple[int, int] | None) -> NDArray[np.int64]:
        """The sample ids of `step`, shape (samples,), in the order in which they are read.

        `share`: a rank and the number of ranks; None: of all ranks together. Raises WrongArguments.
        """
        begin, end = self.window(step)
        rank, ranks = (0, 1) if share is None else share
        if ranks < 1:
            raise WrongArguments(f"--ranks must be 1 or more, got {ranks}")
        if not 0 <= rank < ranks:
            raise WrongArguments(f"--rank: no rank {rank}: {ranks} ranks are 0 to {ranks - 1}")
        size = end - begin if share is None else self._micro(end - begin, ranks)
        spec = FeedSpec(self.seq_len, size, self.seed, rank, ranks, end=None)
        blocks = Blocks(Sampler(packing.samples, self.seed), spec).iterate(begin)
        count, found = (end - begin) // spec.stride, 0
        rows: list[NDArray[np.int64]] = []
        while found < count:
            rows.append(next(blocks).samples_KB[: count - found])
            found += len(rows[-1])
        return np.concatenate(rows).reshape(-1)

    def _micro(self, batch: int, ranks: int) -> int:
        if self.micro_batch is None:
            raise WrongArguments("--rank needs the size of a micro batch: give a run, or --micro-batch")
        if self.micro_batch < 1 or batch % (ranks * self.micro_batch):
            raise WrongArguments(
                f"--ranks: {ranks} ranks x micro batches of {self.micro_batch} make up no batch of {batch}"
            )
        return self.micro_batch


@dataclass(frozen=True, slots=True)
class Piece:
    """What a sample holds of one document: its tokens [first, first + tokens)."""

    document: int
    first: int
    tokens: int


def pieces(corpus: CorpusReader, packing: Packing, sample: int) -> Iterator[Piece]:
    """What `sample` holds, in its order. What they leave of its `seq_len` positions is padding."""
    bounds = corpus.bounds
    spans = packing.spans(np.array([sample], np.int64))
    for start, length in zip(spans.start.tolist(), spans.length.tolist(), strict=True):
        document = int(np.searchsorted(bounds, start, side="right")) - 1
        begin, end = start, start + length
        while begin < end:
            stop = min(int(bounds[document + 1]), end)
            if stop > begin:  # an empty document is no part of any sample
                yield Piece(document, begin - int(bounds[document]), stop - begin)
            begin, document = stop, document + 1


def _ends(metrics: Path, steps: set[int]) -> dict[int, int]:
    """Where those of `steps` ended that metrics.jsonl has, in samples over all ranks."""
    ends: dict[int, int] = {}
    try:
        with metrics.open(encoding="utf-8", errors="replace") as lines:
            for text in lines:
                # A line that a kill cut short says nothing.
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    continue
                if isinstance(line, dict) and line.get("step") in steps and type(line.get("position")) is int:
                    ends[line["step"]] = line["position"]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise WrongArguments(f"{metrics}: cannot be read: {error.strerror}") from error
    return ends
