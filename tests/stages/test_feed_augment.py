"""A feed with an augmentation: its columns, its resume, its fingerprint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from stages.augment import (
    Augmentation,
    FillInTheMiddle,
    MaskedLanguageModelling,
    Rows,
    SpanCorruption,
    Widths,
)
from stages.collate import IGNORE, Column
from stages.corpus import LocalCorpus, open_corpus
from stages.errors import FeedMismatch
from stages.feed import FeedSpec, numpy_feed
from stages.packing import Method
from tests.corpora import random_documents, write_corpus

SEQ_LEN, END = 16, 48
ALL: tuple[Column, ...] = get_args(Column)
MASK = 60_000

AUGMENTATIONS: dict[str, Augmentation] = {
    "masked": MaskedLanguageModelling(mask=MASK, vocab_size=500, chosen=0.5),
    "fill_in_the_middle": FillInTheMiddle(60_001, 60_002, 60_003, rate=0.8, shortest=6),
    "spans": SpanCorruption(tuple(range(60_010, 60_020)), eos=1, density=0.4, mean_span=2),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCorpus]:
    folder: Path = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, random_documents((13, 1, 30, 8, 8, 2, 45, 5, 17, 3, 60, 9)), batch_tokens=32)
    with open_corpus(folder) as opened:
        yield opened


def spec(
    name: str,
    *,
    packing: Method = "wrapped",
    seed: int = 3,
    rank: int = 0,
    world_size: int = 1,
    batch_size: int = 4,
    threads: int = 1,
    prefetch: bool = True,
) -> FeedSpec:
    return FeedSpec(
        SEQ_LEN,
        batch_size,
        seed=seed,
        rank=rank,
        world_size=world_size,
        end=END,
        columns=ALL,
        packing=packing,
        threads=threads,
        prefetch=prefetch,
        augment=AUGMENTATIONS[name],
    )


def rows(corpus: LocalCorpus, feed_spec: FeedSpec, position: int = 0) -> list[list[list[int]]]:
    """Ids and labels of each sample, in the order of this rank's positions."""
    feed = numpy_feed(corpus, feed_spec)
    feed.load_state_dict({**feed.state_dict(), "position": position})
    return [
        [ids.tolist(), labels.tolist()]
        for batch in feed
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True)
    ]


@pytest.mark.parametrize("packing", ["wrapped", "bfd"])
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_equal_at_every_cut_width_and_world_size(corpus: LocalCorpus, name: str, packing: Method) -> None:
    whole = rows(corpus, spec(name, packing=packing))
    assert len(whole) == END
    for cut in range(0, END, 4):
        assert rows(corpus, spec(name, packing=packing), cut) == whole[cut:]
    assert rows(corpus, spec(name, packing=packing, threads=8)) == whole
    assert rows(corpus, spec(name, packing=packing, prefetch=False)) == whole
    ranks = [rows(corpus, spec(name, packing=packing, rank=r, world_size=2, batch_size=2)) for r in range(2)]
    assert [row for k in range(0, END // 2, 2) for rank in ranks for row in rank[k : k + 2]] == whole


@pytest.mark.parametrize("packing", ["wrapped", "bfd"])
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_columns_fit_together(corpus: LocalCorpus, name: str, packing: Method) -> None:
    widths = AUGMENTATIONS[name].widths(SEQ_LEN)
    for batch in numpy_feed(corpus, spec(name, packing=packing)):
        for column in ("input_ids", "position_ids", "attention_mask"):
            assert batch[column].shape == (4, widths.ids)
        assert batch["labels"].shape == (4, widths.labels)
        positions = np.arange(4 * widths.ids)
        begins = batch["cu_seqlens"][np.searchsorted(batch["cu_seqlens"], positions, side="right") - 1]
        assert (batch["position_ids"].reshape(-1) == positions - begins).all()
        if widths.labels == SEQ_LEN:
            assert (batch["labels"][batch["attention_mask"] == 0] == IGNORE).all()
        assert (np.diff(batch["attention_mask"], axis=1) <= 0).all()


def test_ids_or_labels_are_those_of_the_corpus(corpus: LocalCorpus) -> None:
    unchanged = numpy_feed(corpus, FeedSpec(SEQ_LEN, 4, seed=3, end=END))
    for plain, batch in zip(unchanged, numpy_feed(corpus, spec("masked")), strict=True):
        chosen = batch["labels"] != IGNORE
        assert 0 < chosen.sum() < chosen.size
        assert (np.where(chosen, batch["labels"], batch["input_ids"]) == plain["input_ids"]).all()
        assert (plain["sample_ids"] == batch["sample_ids"]).all()


class Recording:
    """Changes nothing, and notes with what it was called."""

    identity = "recording"

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.seeds: set[int] = set()

    def widths(self, seq_len: int) -> Widths:
        return Widths(seq_len, seq_len)

    def __call__(self, rows: Rows, seed: int) -> Rows:
        self.positions += rows.positions_S.tolist()
        self.seeds.add(seed)
        return rows


def test_ones_own_gets_the_run_s_positions_and_seed(corpus: LocalCorpus) -> None:
    """And what changes nothing gives the batches of a feed without augmentation."""
    own = Recording()
    changed = spec("masked", seed=11, rank=1, world_size=3, batch_size=2)
    got = list(numpy_feed(corpus, replace(changed, augment=own)))
    assert own.positions == [p for p in range(END) if p % 6 in (2, 3)]
    assert own.seeds == {11}
    for batch, plain in zip(got, numpy_feed(corpus, replace(changed, augment=None)), strict=True):
        assert batch.keys() == plain.keys()
        assert all((batch[column] == plain[column]).all() for column in batch)


def test_epochs_are_augmented_anew(corpus: LocalCorpus) -> None:
    feed = numpy_feed(corpus, spec("masked"))
    seen: dict[int, list[bytes]] = {}
    for batch in feed:
        for sample, ids in zip(batch["sample_ids"].tolist(), batch["input_ids"], strict=True):
            seen.setdefault(sample, []).append(ids.tobytes())
    again = [len(set(ids)) == len(ids) for ids in seen.values() if len(ids) > 1]
    assert len(again) >= 10
    assert all(again)


def test_a_state_of_another_augmentation_is_refused(corpus: LocalCorpus) -> None:
    feed = numpy_feed(corpus, spec("masked"))
    next(iter(feed))
    state = feed.state_dict()
    with pytest.raises(FeedMismatch, match=r"augment: saved 'MaskedLanguageModelling.*now 'FillInTheMiddle"):
        numpy_feed(corpus, spec("fill_in_the_middle")).load_state_dict(state)
    with pytest.raises(FeedMismatch, match=r"augment: .*now None"):
        numpy_feed(corpus, FeedSpec(SEQ_LEN, 4, seed=3)).load_state_dict(state)
    numpy_feed(corpus, spec("masked")).load_state_dict(state)


def test_rows_that_cannot_be_augmented_are_refused_when_the_feed_is_described() -> None:
    with pytest.raises(ValueError, match="spans of a row of 512 tokens need as many sentinels, got 10"):
        FeedSpec(512, 4, augment=AUGMENTATIONS["spans"])
