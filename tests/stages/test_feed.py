"""The feed against its definition, and resumed at every cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.collate import Arrays
from stages.corpus import LocalCorpus, SpecialToken, TokenizerMeta, open_corpus
from stages.errors import CorpusTooSmall, FeedMismatch
from stages.feed import ENDLESS, Block, Blocks, Feed, FeedSpec, Sampler, numpy_feed, pad_id, tensor_feed
from stages.order import Permutation
from tests.contracts.engine import SourceContract
from tests.corpora import random_documents, write_corpus

SEQ = 8
LENGTHS = (13, 1, 30, 8, 8, 2, 45, 5, 17, 3)  # 132 tokens: 16 samples of 8 and 4 tokens dropped
SAMPLES = sum(LENGTHS) // SEQ


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCorpus]:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, random_documents(LENGTHS), batch_tokens=32)
    with open_corpus(folder) as opened:
        yield opened


def spec(**changed: object) -> FeedSpec:
    values = {"seq_len": SEQ, "batch_size": 2, "seed": 42, "end": 40, **changed}
    return FeedSpec(**values)  # type: ignore[arg-type]


def plain(batch: Arrays) -> dict[str, list[object]]:
    return {name: array.tolist() for name, array in batch.items()}


def all_of(feed: Feed[Arrays]) -> list[dict[str, list[object]]]:
    return [plain(batch) for batch in feed]


def test_batches_are_what_the_definition_says(corpus: LocalCorpus) -> None:
    columns = ("input_ids", "labels", "position_ids", "attention_mask", "cu_seqlens", "sample_ids")
    stream = np.concatenate([corpus.view(d, 0, int(corpus.lengths[d])) for d in range(len(corpus))]).astype(
        int
    )
    begins = set(corpus.bounds[:-1].tolist())
    got = all_of(numpy_feed(corpus, spec(columns=columns)))
    assert len(got) == 20
    for number, batch in enumerate(got):
        cuts = []
        for row in range(2):
            position = 2 * number + row
            permutation = Permutation(SAMPLES, 42, position // SAMPLES)
            sample = int(permutation(np.array([position % SAMPLES]))[0])
            window = stream[sample * SEQ : (sample + 1) * SEQ].tolist()
            first = [t == 0 or sample * SEQ + t in begins for t in range(SEQ)]
            places = [t - max(s for s in range(t + 1) if first[s]) for t in range(SEQ)]
            cuts += [row * SEQ + t for t in range(SEQ) if first[t]]
            assert batch["sample_ids"][row] == sample
            assert batch["input_ids"][row] == window
            assert batch["labels"][row] == [
                -100 if f else token for f, token in zip(first, window, strict=True)
            ]
            assert batch["position_ids"][row] == places
            assert batch["attention_mask"][row] == [1] * SEQ
        assert batch["cu_seqlens"] == [*cuts, 2 * SEQ]


class TestBlocks(SourceContract):
    def make_source(self) -> Blocks:
        # The order is evaluated many times (64 batches at once), over epochs of 3 samples.
        return Blocks(Sampler(3, seed=1), spec(batch_size=64, rank=1, world_size=2, end=128 * 700))

    def plain(self, value: object) -> object:
        assert isinstance(value, Block)
        return value.index, value.position, value.samples_KB.tolist()


@pytest.mark.parametrize("samples", [1, 7, 999, 1 << 60])
def test_the_last_positions_are_like_the_first(samples: int) -> None:
    """Positions end at 2**62; up to there nothing wraps."""
    spec_near_end = spec(batch_size=4, world_size=2, rank=1, end=None)
    sampler = Sampler(samples, seed=1)
    blocks = list(Blocks(sampler, spec_near_end).iterate(ENDLESS - 8 * 5))
    assert sum(len(block.samples_KB) for block in blocks) == 5
    for block in blocks:
        for k, row in enumerate(block.samples_KB):
            first = block.position + 8 * k + 4
            assert row.tolist() == [int(sampler(np.array([first + j]))[0]) for j in range(4)]


def test_resume_twice(corpus: LocalCorpus) -> None:
    whole = all_of(numpy_feed(corpus, spec()))
    for first, second in itertools.combinations_with_replacement(range(len(whole) + 1), 2):
        got, state = [], json.dumps(numpy_feed(corpus, spec()).state_dict())
        for stop in (first, second, len(whole)):
            feed = numpy_feed(corpus, spec(prefetch=False))
            feed.load_state_dict(json.loads(state))
            got += [plain(batch) for batch in itertools.islice(feed, stop - len(got))]
            state = json.dumps(feed.state_dict())
        assert got == whole, f"cut at {first} and {second}"


@pytest.mark.parametrize("prefetch", [True, False])
def test_state_says_what_was_handed_out_and_not_what_was_read(corpus: LocalCorpus, prefetch: bool) -> None:
    feed = numpy_feed(corpus, spec(prefetch=prefetch))
    for count, item in enumerate(feed.items(), start=1):
        assert feed.position == item.resume["position"] == 2 * count


def test_epoch_boundary(corpus: LocalCorpus) -> None:
    whole = all_of(numpy_feed(corpus, spec(end=3 * SAMPLES)))
    feed = numpy_feed(corpus, spec(end=SAMPLES))
    first = all_of(feed)
    assert feed.epoch == 1
    assert sorted(s for b in first for s in b["sample_ids"]) == list(range(SAMPLES))  # type: ignore[type-var]
    after = numpy_feed(corpus, spec(end=3 * SAMPLES))
    after.load_state_dict(feed.state_dict())
    rest = all_of(after)
    assert first + rest == whole
    for epoch in range(2):
        ids = [s for b in rest[epoch * SAMPLES // 2 : (epoch + 1) * SAMPLES // 2] for s in b["sample_ids"]]
        assert sorted(ids) == list(range(SAMPLES))  # type: ignore[type-var]
    assert [b["sample_ids"] for b in rest[: SAMPLES // 2]] != [b["sample_ids"] for b in first]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.integers(0, 5))
def test_global_batches_do_not_depend_on_world_size(
    corpus: LocalCorpus, before: int, after: int, steps: int
) -> None:
    """A global batch of 8 by any number of ranks; the world size changes after `steps` global batches."""
    end = 80

    def ranks(
        world: int, state: dict[str, object] | None, until: int
    ) -> tuple[list[list[int]], list[dict[str, object]]]:
        feeds = [
            numpy_feed(corpus, spec(batch_size=1, rank=r, world_size=world, end=end)) for r in range(world)
        ]
        for feed in feeds:
            if state is not None:
                feed.load_state_dict(state)  # type: ignore[arg-type]
        wanted = (until - feeds[0].position) // world
        rows = [[int(i) for b in itertools.islice(f, wanted) for i in b["sample_ids"]] for f in feeds]
        order = [rows[r][m] for m in range(wanted) for r in range(world)]
        return [order[k : k + 8] for k in range(0, len(order), 8)], [f.state_dict() for f in feeds]  # type: ignore[misc]

    uninterrupted, _ = ranks(1, None, end)
    first, states = ranks(before, None, 8 * steps)
    assert all(state == states[0] for state in states)
    second, _ = ranks(after, states[0], end)
    assert first + second == uninterrupted


def test_threads_and_prefetch_are_invisible(corpus: LocalCorpus) -> None:
    expected = all_of(numpy_feed(corpus, spec(end=400, prefetch=False)))
    for threads in (1, 2, 4):
        assert all_of(numpy_feed(corpus, spec(end=400, threads=threads))) == expected


def test_tensors_are_the_arrays(corpus: LocalCorpus) -> None:
    arrays = numpy_feed(corpus, spec())
    for expected, tensors in zip(arrays, tensor_feed(corpus, spec()), strict=True):
        assert tensors.keys() == expected.keys()
        for name, tensor in tensors.items():
            assert isinstance(tensor, torch.Tensor)
            assert tensor.dtype == torch.int64
            assert tensor.tolist() == expected[name].tolist()


def test_a_kept_batch_is_not_written_over(corpus: LocalCorpus) -> None:
    kept = list(numpy_feed(corpus, spec(end=400)))
    assert [plain(batch) for batch in kept] == all_of(numpy_feed(corpus, spec(end=400, prefetch=False)))


def test_length_counts_what_is_left(corpus: LocalCorpus) -> None:
    feed = numpy_feed(corpus, spec(end=40))
    assert len(feed) == 20
    next(iter(feed))
    assert len(feed) == 19
    with pytest.raises(TypeError, match="no end"):
        len(numpy_feed(corpus, spec(end=None)))


def test_without_an_end_epochs_follow_one_another(corpus: LocalCorpus) -> None:
    endless = itertools.islice(numpy_feed(corpus, spec(end=None)), 100)
    ids = [int(i) for batch in endless for i in batch["sample_ids"]]
    for epoch in range(200 // SAMPLES):
        assert sorted(ids[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"seed": 43}, "seed: saved 42, now 43"), ({"seq_len": 4}, "seq_len: saved 8, now 4")],
)
def test_other_settings_are_refused_by_name(
    corpus: LocalCorpus, changed: dict[str, object], named: str
) -> None:
    feed = numpy_feed(corpus, spec())
    next(iter(feed))
    other = numpy_feed(corpus, spec(**changed))
    with pytest.raises(FeedMismatch) as caught:
        other.load_state_dict(feed.state_dict())
    assert named in str(caught.value)
    assert other.position == 0
    # Before the first sample nothing has been consumed that could differ.
    other.load_state_dict(numpy_feed(corpus, spec()).state_dict())


def test_another_corpus_is_refused_by_name(corpus: LocalCorpus, tmp_path: Path) -> None:
    write_corpus(tmp_path / "other", random_documents(LENGTHS, seed=1))
    feed = numpy_feed(corpus, spec())
    next(iter(feed))
    with open_corpus(tmp_path / "other") as other, pytest.raises(FeedMismatch, match="corpus: saved"):
        numpy_feed(other, spec()).load_state_dict(feed.state_dict())


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"format": 2},
        {"format": 1, "position": "x"},
        {"format": 1, "position": -1, "fingerprint": {}},
        {"format": 1, "position": True, "fingerprint": {}},
        {"format": 1, "position": 1 << 62, "fingerprint": {}},
    ],
)
def test_a_state_that_is_not_ours_is_refused(corpus: LocalCorpus, state: dict[str, object]) -> None:
    with pytest.raises(FeedMismatch, match=r"not one of ours|of format"):
        numpy_feed(corpus, spec()).load_state_dict(state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1"),
        ({"rank": 2, "world_size": 2}, "rank must be in"),
        ({"seed": -1}, r"seed must be in \[0, 2\*\*64\), got -1"),
        ({"seed": 1 << 64}, "seed must be in"),
        ({"threads": 0}, "threads must be >= 1"),
        ({"end": -2}, "end must be in .* got -2"),
        ({"end": 41}, "multiple of batch_size x world_size = 2, got 41"),
        ({"columns": ("input_ids", "lables")}, "unknown columns \\['lables'\\]"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec(**changed)


def test_a_corpus_smaller_than_a_sample_is_refused(corpus: LocalCorpus) -> None:
    with pytest.raises(CorpusTooSmall, match="132 tokens, too few for one sample of seq_len 1000"):
        numpy_feed(corpus, spec(seq_len=1000))


def test_a_feed_that_is_left_ends_its_threads(corpus: LocalCorpus) -> None:
    import threading

    before = threading.active_count()
    for _ in range(20):
        items = numpy_feed(corpus, spec(end=None)).items()
        next(items)
        items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


@pytest.mark.parametrize("world_size", range(2, 9))
def test_uneven_ranks(tmp_path: Path, world_size: int) -> None:
    """37 documents of uneven lengths, one finite pass: all ranks know their number of steps before the first one."""
    write_corpus(tmp_path / "uneven", random_documents([1 + 7 * k % 53 for k in range(37)]))
    with open_corpus(tmp_path / "uneven") as uneven:
        samples = uneven.meta.tokens // SEQ
        end = samples - samples % world_size
        feeds = [
            numpy_feed(uneven, spec(batch_size=1, rank=rank, world_size=world_size, end=end))
            for rank in range(world_size)
        ]
        assert {len(feed) for feed in feeds} == {end // world_size}
        seen = [int(i) for feed in feeds for batch in feed for i in batch["sample_ids"]]
    assert len(seen) == len(set(seen)) == end
    with pytest.raises(ValueError, match="multiple of batch_size x world_size"):
        spec(batch_size=1, world_size=world_size, end=end + 1)


PACKINGS = ("wrapped", "bfd", "bfd_split")


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_are_what_the_packing_says(corpus: LocalCorpus, packing: str) -> None:
    """Padding is known by its place: its label is -100, its mask is 0, and it counts as a document of its own."""
    columns = ("input_ids", "labels", "position_ids", "attention_mask", "cu_seqlens", "sample_ids")
    feed = numpy_feed(corpus, spec(packing=packing, columns=columns, end=200, seq_len=10))
    stream = np.concatenate([corpus.view(d, 0, int(corpus.lengths[d])) for d in range(len(corpus))])
    for batch in feed:
        cuts = []
        for row, sample in enumerate(batch["sample_ids"].tolist()):
            only = np.array([sample])
            spans = feed.packing.spans(only)
            starts = feed.packing.starts(only, corpus.bounds).tolist()
            filled = int(feed.packing.filled(only)[0])
            ids = np.concatenate([stream[s : s + n] for s, n in zip(spans.start, spans.length, strict=True)])
            assert batch["input_ids"][row].tolist() == ids.tolist() + [0] * (10 - filled)
            assert batch["attention_mask"][row].tolist() == [1] * filled + [0] * (10 - filled)
            assert batch["position_ids"][row].tolist() == [
                t - max(s for s in starts if s <= t) for t in range(10)
            ]
            assert batch["labels"][row].tolist() == [
                -100 if t in starts or t >= filled else int(ids[t]) for t in range(10)
            ]
            cuts += [row * 10 + start for start in starts]
        assert batch["cu_seqlens"].tolist() == [*cuts, 20]


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_resume(corpus: LocalCorpus, tmp_path: Path, packing: str, threads: int) -> None:
    """Stopped in mid-epoch at every batch, and resumed from a plan that was stored: the same tokens."""
    settings_ = spec(packing=packing, threads=threads, plans=tmp_path / "plans")
    whole = all_of(numpy_feed(corpus, spec(packing=packing, prefetch=False)))
    for stop in range(0, len(whole) + 1, 3):
        feed = numpy_feed(corpus, settings_)
        before = [plain(batch) for batch in itertools.islice(feed, stop)]
        resumed = numpy_feed(corpus, settings_)
        resumed.load_state_dict(json.loads(json.dumps(feed.state_dict())))
        assert before + all_of(resumed) == whole, f"stopped after {stop}"


@pytest.mark.parametrize("packing", PACKINGS)
def test_world_size_changes_with_packing(corpus: LocalCorpus, packing: str) -> None:
    """4, then 2, then 8 ranks in mid-epoch: the global batches of 8 stay what they are."""
    expected = all_of(numpy_feed(corpus, spec(packing=packing, batch_size=8)))
    state: dict[str, object] | None = None
    for number, world in enumerate((4, 2, 8)):
        rows: list[dict[str, list[object]]] = []
        for rank in range(world):
            feed = numpy_feed(
                corpus, spec(packing=packing, batch_size=8 // world, rank=rank, world_size=world)
            )
            if state is not None:
                feed.load_state_dict(state)  # type: ignore[arg-type]
            rows.append(plain(next(iter(feed))))
        state = feed.state_dict()  # type: ignore[assignment]
        together = {name: [row for part in rows for row in part[name]] for name in rows[0]}
        assert together == expected[number]


def test_another_packing_is_refused_by_name(corpus: LocalCorpus) -> None:
    feed = numpy_feed(corpus, spec(packing="bfd"))
    next(iter(feed))
    with pytest.raises(FeedMismatch, match="packing: saved 'bfd', now 'wrapped'"):
        numpy_feed(corpus, spec()).load_state_dict(feed.state_dict())
    with pytest.raises(ValueError, match="unknown packing 'bdf'; known: wrapped, bfd, bfd_split"):
        spec(packing="bdf")


def test_padding_is_written_as_the_tokenizer_says() -> None:
    def tokenizer(eos: int | None, pad: int | None) -> TokenizerMeta:
        named = [None if id_ is None else SpecialToken("x", id_) for id_ in (eos, pad)]
        return TokenizerMeta("tokenizer.json", "0" * 64, 100, eos=named[0], bos=None, pad=named[1])

    assert [pad_id(tokenizer(*ids)) for ids in ((None, None), (7, None), (7, 9), (None, 9))] == [0, 7, 9, 9]
