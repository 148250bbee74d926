"""The feed: the loader that a trainer holds.

    position ─► order ─► packing ─► gather, augment, collate ─► transfer ─► batch
               └─ a source ─┘      └───── worker threads ────┘  └─ consumer ─┘

Everything is driven by one integer, the position: the number of samples consumed over all ranks. A resume is a seek,
and a batch is a pure function of (corpus, packing, seq_len, augment, seed, position, batch_size, rank, world_size).

Samples at positions [p, p + batch_size x world_size) make up one batch per rank: rank r takes the r-th stretch of
`batch_size`. Where accumulation x batch_size x world_size stays the same, so do the global batches, at any world size.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from pipeline import JSON, Item, Plan, State, start
from stages import collate
from stages.augment import Augmentation, Rows, Widths
from stages.collate import COLUMNS, Arrays, Column
from stages.corpus import LocalCorpus, TokenizerMeta
from stages.errors import CorpusTooSmall, FeedMismatch
from stages.order import SEEDS, Permutation
from stages.packing import ALGORITHM, METHODS, Method, Packing, packed
from stages.transfer import Lookahead, Slot, ToCuda, ToHost, ToNumpy, Transfer

if TYPE_CHECKING:
    import torch

B = TypeVar("B")

FORMAT = 1
ORDER_CHUNK = 4096
"""Indices of the permutation evaluated at once; per batch of 8 the evaluation alone would cost 300 us."""
BLOCK_BYTES = 2 << 20
"""Token ids of one hop between threads: large enough that the hop is small beside the work."""
BLOCK_BATCHES = 64
AHEAD = 2
"""Blocks that wait for the consumer, beside two for each thread: enough never to let it wait, few enough to stay in
the cache."""
SLOTS = 4
"""Pinned slots of a CUDA feed, each of one block."""
ENDLESS = 1 << 62
"""Positions lie below, so that their sums fit into int64."""


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """What a feed hands out. `batch_size` is per rank; all ranks must agree on everything but `rank`."""

    seq_len: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    end: int | None = None
    """Position at which the feed ends, in samples over all ranks; None: it runs across epochs for ever."""
    columns: Sequence[Column] = COLUMNS
    prefetch: bool = True
    """Assemble batches in worker threads ahead of the consumer; False: in the consumer's own thread."""
    threads: int = 1
    """Of the prefetching. One is faster than two while the corpus is in memory; more pay where a disk is waited for."""
    packing: Method = "wrapped"
    plans: Path | None = None
    """A folder in which plans of bfd and bfd_split are kept; None: they are made at each start."""
    augment: Augmentation | None = None
    """What is done to samples before they are collated; None: nothing."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in [0, world_size), got rank {self.rank} of {self.world_size}")
        if unknown := collate.unknown_columns(self.columns):
            raise ValueError(f"unknown columns {unknown}; known: {', '.join(get_args(Column))}")
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"seed must be in [0, 2**64), got {self.seed}")
        if self.packing not in METHODS:
            raise ValueError(f"unknown packing {self.packing!r}; known: {', '.join(METHODS)}")
        if self.threads < 1:
            raise ValueError(f"threads must be >= 1, got {self.threads}")
        if self.augment is not None:
            self.augment.widths(self.seq_len)  # refuses what it cannot take
        if self.end is not None and not 0 <= self.end <= ENDLESS:
            raise ValueError(f"end must be in [0, 2**62], got {self.end}")
        if self.end is not None and self.end % self.stride:
            raise ValueError(
                f"end must be a multiple of batch_size x world_size = {self.stride}, got {self.end}"
            )

    @property
    def stride(self) -> int:
        """Samples that one batch of every rank consumes together."""
        return self.batch_size * self.world_size

    def positions(self, position: int, count: int) -> NDArray[np.int64]:
        """Where the samples of this rank's next `count` batches lie in the run, shape (count, batch_size)."""
        first = position + self.rank * self.batch_size
        batches = first + np.arange(count, dtype=np.int64) * self.stride
        return batches[:, None] + np.arange(self.batch_size, dtype=np.int64)

    def batches_from(self, position: int) -> int:
        end = ENDLESS if self.end is None else self.end
        return max(end - position, 0) // self.stride


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive batches of one rank: the `index`-th block, `samples_KB` sample ids, the first at `position`."""

    index: int
    position: int
    samples_KB: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Collated:
    """A block's arrays, one entry per batch, and the slot that holds their memory."""

    position: int
    batches: Sequence[Arrays]
    slot: Slot


class Blocks:
    """The source: which samples this rank reads, from a position on.

    Blocks grow from one batch to `most` so that the first batch does not wait for a whole block.
    """

    def __init__(self, sampler: Sampler, spec: FeedSpec) -> None:
        self._sampler, self._spec = sampler, spec
        self._most = min(max(BLOCK_BYTES // (spec.batch_size * spec.seq_len * 8), 1), BLOCK_BATCHES)

    def iterate(self, position: int, index: int = 0) -> Iterator[Block]:
        """Blocks from `position` on, the first of them the `index`-th."""
        size, stride = self._spec.batch_size, self._spec.stride
        left = self._spec.batches_from(position)
        samples_KB = np.empty((0, size), np.int64)
        while left > 0:
            hop = min(1 << min(index, BLOCK_BATCHES.bit_length()), self._most, left)
            if len(samples_KB) < hop:
                count = min(max(ORDER_CHUNK // size, hop), left - len(samples_KB))
                more_KB = self._samples(position + len(samples_KB) * stride, count)
                samples_KB = np.concatenate([samples_KB, more_KB])
            yield Block(index, position, samples_KB[:hop])
            samples_KB = samples_KB[hop:]
            index, position, left = index + 1, position + hop * stride, left - hop

    async def read(self, at: State | None) -> AsyncIterator[Item[Block]]:
        """A state is `{"position", "index"}`; without an index, blocks begin small again."""
        position, index = (0, 0) if at is None else (at["position"], at.get("index", 0))
        assert isinstance(position, int)
        assert isinstance(index, int)
        for block in self.iterate(position, index):
            after = block.position + len(block.samples_KB) * self._spec.stride
            yield Item(block, {"position": after, "index": block.index + 1})

    def _samples(self, position: int, count: int) -> NDArray[np.int64]:
        """Sample ids of this rank's next `count` batches, shape (count, batch_size)."""
        positions_KB = self._spec.positions(position, count)
        return self._sampler(positions_KB.reshape(-1)).reshape(positions_KB.shape)


class Sampler:
    """Sample ids at positions: a fresh permutation of [0, samples) in each epoch, epochs end to end."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed = samples, seed

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        epochs, index = np.divmod(positions, self._samples)
        ids = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            ids[chosen] = Permutation(self._samples, self._seed, int(epoch))(index[chosen])
        return ids


class Assemble:
    """The map: from sample ids to host arrays, a whole block at once."""

    def __init__(self, corpus: LocalCorpus, packing: Packing, spec: FeedSpec, transfer: Transfer[object]):
        self._corpus, self._packing, self._spec, self._transfer = corpus, packing, spec, transfer
        self._pad_id = pad_id(corpus.meta.tokenizer)
        self._widths = widths(spec)

    def __call__(self, block: Block) -> Collated:
        count, size = block.samples_KB.shape
        shape = (count, size, self._widths.ids)
        columns = self._spec.columns
        slot = self._transfer.take(block.index)
        samples = block.samples_KB.reshape(-1)
        ids = slot.int64("input_ids", shape)
        rows = None
        padding: NDArray[np.bool_] | None
        starts = np.empty(0, np.int64)
        if self._spec.augment is not None:
            rows = self._spec.augment(self._rows(block), self._spec.seed)
            np.copyto(ids, rows.ids_ST.reshape(shape))
            starts, padding = rows.starts, collate.padding(rows.filled_S, self._widths.ids)
        else:
            padding = self._gather(samples, ids)
            if not {"labels", "position_ids", "cu_seqlens"}.isdisjoint(columns):
                starts = self._packing.starts(samples, self._corpus.bounds)
        arrays: dict[str, NDArray[np.int64]] = {}
        for column in columns:
            if column == "input_ids":
                arrays[column] = ids
            elif column == "labels" and rows is not None:
                arrays[column] = slot.int64(column, (count, size, self._widths.labels))
                np.copyto(arrays[column], rows.labels_SU.reshape(arrays[column].shape))
            elif column == "labels":
                arrays[column] = slot.int64(column, shape)
                _label(ids, starts, padding, out=arrays[column])
            elif column == "position_ids":
                arrays[column] = slot.int64(column, shape)
                collate.position_ids(starts, out=arrays[column])
            elif column == "attention_mask":
                arrays[column] = slot.int64(column, shape)
                arrays[column][:] = 1 if padding is None else ~padding.reshape(shape)
            elif column == "sample_ids":
                arrays[column] = slot.int64(column, (count, size))
                np.copyto(arrays[column], block.samples_KB)
        batches: list[Arrays] = [{name: array[k] for name, array in arrays.items()} for k in range(count)]
        if "cu_seqlens" in columns:
            cuts = collate.cu_seqlens(starts, count, size * self._widths.ids)
            for batch, cut in zip(batches, cuts, strict=True):
                batch["cu_seqlens"] = cut
        return Collated(block.position, batches, slot)

    def _gather(self, samples: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Tokens into `ids`. Shape (samples, seq_len): where there is none; None where that can be nowhere."""
        self._corpus.gather(self._packing.spans(samples), ids.reshape(-1))
        if not self._packing.account.padded:
            return None
        padding = collate.padding(self._packing.filled(samples), self._packing.seq_len)
        np.copyto(ids, self._pad_id, where=padding.reshape(ids.shape))
        return padding

    def _rows(self, block: Block) -> Rows:
        """A block as an augmentation takes it."""
        samples = block.samples_KB.reshape(-1)
        ids_ST = np.empty((samples.size, self._packing.seq_len), np.int64)
        labels_ST = np.empty_like(ids_ST)
        padding = self._gather(samples, ids_ST)
        starts = self._packing.starts(samples, self._corpus.bounds)
        _label(ids_ST, starts, padding, out=labels_ST)
        positions_KB = self._spec.positions(block.position, len(block.samples_KB))
        return Rows(positions_KB.reshape(-1), ids_ST, labels_ST, starts, self._packing.filled(samples))


def _label(
    ids: NDArray[np.int64],
    starts: NDArray[np.int64],
    padding: NDArray[np.bool_] | None,
    out: NDArray[np.int64],
) -> None:
    collate.labels(ids, starts, out=out)
    if padding is not None:
        np.copyto(out, collate.IGNORE, where=padding.reshape(out.shape))


def widths(spec: FeedSpec) -> Widths:
    """Positions of a row and of its labels. ValueError: the augmentation takes no rows of this seq_len."""
    return Widths(spec.seq_len, spec.seq_len) if spec.augment is None else spec.augment.widths(spec.seq_len)


def pad_id(tokenizer: TokenizerMeta) -> int:
    """What padding is written as: the tokenizer's pad, else its eos, else 0. No label and no mask goes by it."""
    token = tokenizer.pad or tokenizer.eos
    return 0 if token is None else token.id


class Feed(Generic[B]):
    """An iterable of this rank's batches, resumable at any position.

    Each batch is a dict of the spec's columns: `input_ids`, `labels`, `position_ids`, `attention_mask` of shape
    (batch_size, seq_len), `sample_ids` (batch_size,), all int64, and `cu_seqlens` (documents + 1,) int32 over the
    flattened batch; an augmentation may have other widths than seq_len. What a packing leaves free at a row's end is
    padding: its labels are -100, its attention_mask is 0, and in position_ids and cu_seqlens it counts as a document of
    its own. Iterating goes on from `position`, across epochs, without end or up to `spec.end`.

    `state_dict()` may be taken between any two batches: it says where the batches handed out so far end, however
    far the feed has read ahead.
    """

    def __init__(self, corpus: LocalCorpus, spec: FeedSpec, transfer: Callable[[], Transfer[B]]) -> None:
        self.packing: Packing = packed(corpus, spec.packing, spec.seq_len, spec.plans)
        if self.packing.samples == 0:
            raise CorpusTooSmall(
                f"the corpus has {corpus.meta.tokens} tokens, too few for one sample of seq_len {spec.seq_len}: "
                "pack more text or lower seq_len"
            )
        self.position = 0
        """Samples handed out so far, over all ranks."""
        self._corpus, self._spec, self._transfer = corpus, spec, transfer
        self._blocks = Blocks(Sampler(self.packing.samples, spec.seed), spec)
        self._fingerprint: dict[str, JSON] = {
            "corpus": corpus.meta.digest,
            "packing": self.packing.name,
            "seq_len": spec.seq_len,
            "samples": self.packing.samples,
            "seed": spec.seed,
            **({} if spec.packing == "wrapped" else {"algorithm": ALGORITHM}),
            **({} if spec.augment is None else {"augment": spec.augment.identity}),
        }

    def __len__(self) -> int:
        """Batches per rank from the current position to `end`. Raises TypeError where no end is set."""
        if self._spec.end is None:
            raise TypeError("this feed has no end: it runs across epochs (give end= to bound it)")
        return self._spec.batches_from(self.position)

    @property
    def epoch(self) -> int:
        return self.position // self.packing.samples

    def __iter__(self) -> Iterator[B]:
        with closing(self.items()) as items:
            for item in items:
                yield item.value

    def items(self) -> Generator[Item[B], None, None]:
        """The batches, each with the feed's state after it."""
        transfer = self._transfer()
        try:
            for batch, after in Lookahead(self._sent(transfer), transfer):
                self.position = after
                yield Item(batch, self.state_dict())
        finally:
            transfer.close()

    def _sent(self, transfer: Transfer[B]) -> Iterator[tuple[B, int]]:
        for collated in self._collated(transfer):
            after, last = collated.position, len(collated.batches) - 1
            for k, arrays in enumerate(collated.batches):
                after += self._spec.stride
                yield transfer.send(arrays, collated.slot, k == last), after

    def _collated(self, transfer: Transfer[B]) -> Iterator[Collated]:
        assemble = Assemble(self._corpus, self.packing, self._spec, transfer)
        if not self._spec.prefetch:
            yield from map(assemble, self._blocks.iterate(self.position))
            return
        threads = self._spec.threads
        plan = Plan(self._blocks).map(
            assemble, width=threads, on="thread", name="assemble", ahead=2 * threads + AHEAD
        )
        with start(plan, at={"position": self.position}) as running:
            try:
                for item in running:
                    yield item.value
            finally:
                transfer.close()  # else a worker that waits for a slot would hold up the end of the plan

    def state_dict(self) -> State:
        return {"format": FORMAT, "position": self.position, "fingerprint": dict(self._fingerprint)}

    def load_state_dict(self, state: State) -> None:
        """Seek to a saved state. Raises FeedMismatch, naming what differs, where [0, position) would be another."""
        if state.get("format") != FORMAT:
            raise FeedMismatch(
                f"feed state of format {state.get('format')!r}; this version reads format {FORMAT}"
            )
        position, stored = state.get("position"), state.get("fingerprint")
        if type(position) is not int or not isinstance(stored, dict):
            raise FeedMismatch(f"feed state is not one of ours: position {position!r}")
        if not 0 <= position < ENDLESS:
            raise FeedMismatch(f"feed state is not one of ours: position {position} is not in [0, 2**62)")
        differing = [
            f"{key}: saved {stored.get(key)!r}, now {self._fingerprint.get(key)!r}"
            for key in sorted(stored.keys() | self._fingerprint.keys())
            if stored.get(key) != self._fingerprint.get(key)
        ]
        # Before the first sample nothing has been consumed that could differ.
        if position > 0 and differing:
            raise FeedMismatch(
                f"{position} samples were consumed from other data: " + "; ".join(differing) + ". "
                "Resume with the corpus and settings of the saved run, or start a new run"
            )
        self.position = position


def numpy_feed(corpus: LocalCorpus, spec: FeedSpec) -> Feed[Arrays]:
    """A feed of numpy batches; torch is not imported."""
    return Feed(corpus, spec, ToNumpy)


def tensor_feed(corpus: LocalCorpus, spec: FeedSpec, device: str = "cpu") -> Feed[dict[str, torch.Tensor]]:
    """A feed of torch batches on `device`: "cpu", "cuda" or "cuda:N"."""
    import torch

    where = torch.device(device)
    if where.type == "cuda":
        return Feed(corpus, spec, lambda: ToCuda(where, SLOTS))
    return Feed(corpus, spec, ToHost)
