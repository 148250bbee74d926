"""What each augmentation makes of rows, and that outputs stay what they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.augment import (
    Augmentation,
    FillInTheMiddle,
    MaskedLanguageModelling,
    Rows,
    SpanCorruption,
    Widths,
    below,
    chance,
    words,
)
from tests.contracts.augmentation import SEQ_LEN, AugmentationContract, generated, rows_of, samples

MASK, BOS, EOS, PREFIX, MIDDLE, SUFFIX = 100, 101, 102, 103, 104, 105
SENTINELS = tuple(range(200, 220))

masked = MaskedLanguageModelling(mask=MASK, vocab_size=90, special=(BOS, EOS))
fim = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, shortest=8, bos=BOS, eos=EOS)
spans = SpanCorruption(SENTINELS, eos=EOS)


class TestMasked(AugmentationContract):
    def augmentation(self) -> MaskedLanguageModelling:
        return masked


class TestFillInTheMiddle(AugmentationContract):
    def augmentation(self) -> FillInTheMiddle:
        return FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=0.9, shortest=8, bos=BOS, eos=EOS)


class TestSpanCorruption(AugmentationContract):
    def augmentation(self) -> SpanCorruption:
        return SpanCorruption(SENTINELS, eos=EOS, density=0.5, mean_span=2)


class Reversed:
    """One's own: the contract is all that it takes."""

    identity = "reversed, algorithm 1"

    def widths(self, seq_len: int) -> Widths:
        return Widths(seq_len, seq_len)

    def __call__(self, rows: Rows, seed: int) -> Rows:
        turned = chance(words(seed, 0, rows.positions_S, np.zeros(1, np.int64)), 0.5)
        ids, labels = rows.ids_ST.copy(), rows.labels_SU.copy()
        for row in np.flatnonzero(turned).tolist():
            filled = int(rows.filled_S[row])
            ids[row, :filled] = ids[row, :filled][::-1]
            labels[row, :filled] = ids[row, :filled]
        flat = labels.reshape(-1)
        flat[rows.starts] = -100
        return Rows(rows.positions_S, ids, labels, rows.starts, rows.filled_S)


class TestOnesOwn(AugmentationContract):
    def augmentation(self) -> Reversed:
        return Reversed()

    def test_each_seed_and_each_position_is_another_draw(self) -> None:
        """It has two outcomes only."""
        row = [list(range(SEQ_LEN))]
        outcomes = [Reversed()(rows_of([row], position=p), 0).ids_ST[0, 0] for p in range(100)]
        assert 25 < outcomes.count(0) < 75


# Stored positions depend on these for ever.


def test_words_are_pinned() -> None:
    drawn = words(7, 1, np.array([[0], [1 << 61]]), np.array([0, 5]))
    assert drawn.tolist() == [
        [9979908890309366218, 839145774777445092],
        [4939982353516239540, 18180180227874026537],
    ]


PINNED: list[tuple[Augmentation, list[int], list[int]]] = [
    (
        MaskedLanguageModelling(mask=MASK, vocab_size=90, chosen=0.5, masked=0.5, random=0.4),
        [1, 100, 3, 57, 5, 84, 7, 8, 9, 100, 11, 100, 100, 74, 24, 2],
        [-100, 2, -100, 4, -100, 6, -100, -100, -100, 10, -100, 12, 13, 14, 15, 16],
    ),
    (
        FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=1),
        [103, 105, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 104, 1, 2, 3],
        [-100, 105, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 104, 1, 2, 3],
    ),
    (
        SpanCorruption(SENTINELS, eos=EOS, density=0.4, mean_span=2),
        [1, 2, 3, 200, 6, 7, 8, 9, 201, 12, 13, 14, 202, 102],
        [200, 4, 5, 201, 10, 11, 202, 15, 16, 102],
    ),
]


@pytest.mark.parametrize(("augment", "ids", "labels"), PINNED, ids=lambda value: type(value).__name__)
def test_augmentations_are_pinned(augment: Augmentation, ids: list[int], labels: list[int]) -> None:
    out = augment(rows_of([[list(range(1, 17))]], seq_len=16, position=12), 1)
    assert out.ids_ST.tolist() == [ids]
    assert out.labels_SU.tolist() == [labels]


# Randomness.


def deviations(hits: int, trials: int, probability: float) -> float:
    return abs(hits - trials * probability) / math.sqrt(trials * probability * (1 - probability))


@pytest.mark.parametrize("probability", [0.001, 0.15, 0.5, 0.999])
def test_chance_has_its_probability(probability: float) -> None:
    drawn = words(5, 0, np.arange(300)[:, None], np.arange(1000))
    assert deviations(int(chance(drawn, probability).sum()), drawn.size, probability) < 5


def test_chance_is_exact_at_its_ends() -> None:
    ends = np.array([0, (1 << 64) - 1], np.uint64)
    assert chance(ends, 0.0).tolist() == [False, False]
    assert chance(ends, 1.0).tolist() == [True, True]
    assert below(ends, np.array([1 << 31])).tolist() == [0, (1 << 31) - 1]


@pytest.mark.parametrize("axis", ["positions", "places", "seeds", "uses"])
def test_words_are_independent_along_every_axis(axis: str) -> None:
    """Each of the 64 bits is even, and equal to its neighbour's half of the time."""
    n = 20_000
    zero, many = np.zeros(1, np.int64), np.arange(n)
    if axis == "positions":
        drawn = words(1, 0, many, zero)
    elif axis == "places":
        drawn = words(1, 0, zero, many)
    elif axis == "seeds":
        drawn = np.concatenate([words(seed, 0, zero, zero) for seed in range(n)])
    else:
        drawn = np.concatenate([words(1, use, zero, zero) for use in range(n)])
    bits = np.unpackbits(drawn.view(np.uint8).reshape(n, 8), axis=1).astype(bool)
    for bit in range(64):
        assert deviations(int(bits[:, bit].sum()), n, 0.5) < 5
        assert deviations(int((bits[1:, bit] == bits[:-1, bit]).sum()), n - 1, 0.5) < 5


# Masked language modelling.


def test_shares_of_masking() -> None:
    rows = rows_of([[list(range(80))]] * 2000, seq_len=80)
    out = masked(rows, 0)
    chosen = out.labels_SU != -100
    trials = rows.ids_ST.size
    assert deviations(int(chosen.sum()), trials, 0.15) < 5
    hits = int(chosen.sum())
    assert deviations(int((out.ids_ST == MASK).sum()), hits, 0.8) < 5
    changed = chosen & (out.ids_ST != MASK) & (out.ids_ST != rows.ids_ST)
    assert deviations(int(changed.sum()), hits, 0.1 * 89 / 90) < 5


@generated
@given(st.lists(samples(), min_size=1, max_size=4))
def test_labels_are_the_chosen_tokens(sample: list[list[list[int]]]) -> None:
    rows = rows_of(sample)
    out = masked(rows, 0)
    chosen = out.labels_SU != -100
    assert (out.labels_SU[chosen] == rows.ids_ST[chosen]).all()
    assert (out.ids_ST[~chosen] == rows.ids_ST[~chosen]).all()
    everything = MaskedLanguageModelling(mask=MASK, vocab_size=90, chosen=1, masked=1, random=0)(rows, 0)
    assert (everything.ids_ST[rows.tokens()] == MASK).all()
    assert (everything.labels_SU[rows.tokens()] == rows.ids_ST[rows.tokens()]).all()


def test_special_tokens_and_masked_prompts_are_never_chosen() -> None:
    rows = rows_of([[[BOS, 1, 2, 3, 4, EOS]]], seq_len=8)
    prompt = Rows(rows.positions_S, rows.ids_ST, without(rows.labels_SU, [1, 2]), rows.starts, rows.filled_S)
    every = MaskedLanguageModelling(
        mask=MASK, vocab_size=90, special=(BOS, EOS), chosen=1, masked=1, random=0
    )
    assert every(prompt, 0).ids_ST.tolist() == [[BOS, 1, 2, MASK, MASK, EOS, 0, 0]]


def without(labels: NDArray[np.int64], places: list[int]) -> NDArray[np.int64]:
    labels = labels.copy()
    labels[0, places] = -100
    return labels


# Fill-in-the-middle.


@generated
@given(st.lists(samples(), min_size=1, max_size=4), st.integers(0, 50), st.booleans(), st.booleans())
def test_a_document_can_be_put_together_again(
    sample: list[list[list[int]]], seed: int, bos: bool, eos: bool
) -> None:
    for documents in sample:
        for document in documents:
            document[: int(bos)] = [BOS] * int(bos)
            document[len(document) - int(eos) :] = [EOS] * int(eos)
    rows = rows_of(sample)
    out = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=0.7, shortest=8, bos=BOS, eos=EOS)(rows, seed)
    assert out.starts.tolist() == rows.starts.tolist()
    ends = [*rows.starts[1:].tolist(), rows.ids_ST.size]
    for begin, end in zip(rows.starts.tolist(), ends, strict=True):
        was, now = rows.ids_ST.reshape(-1)[begin:end].tolist(), out.ids_ST.reshape(-1)[begin:end].tolist()
        labels = out.labels_SU.reshape(-1)[begin:end].tolist()
        if begin % SEQ_LEN >= rows.filled_S[begin // SEQ_LEN]:
            assert now == was
            continue
        assert labels == [-100, *now[1:]]
        if PREFIX not in now:
            assert now == was
            continue
        assert len(was) >= 8
        first, last = int(was[0] == BOS), int(was[-1] == EOS)
        assert now[:first] == was[:first]
        assert now[len(now) - last :] == was[len(was) - last :]
        assert together(now[first : len(now) - last]) == was[first : len(was) - last - 3]


def together(text: list[int]) -> list[int]:
    assert text[0] == PREFIX
    suffix, middle = text.index(SUFFIX), text.index(MIDDLE)
    if suffix == 1:
        return text[middle + 1 :] + text[2:middle]
    return text[1:suffix] + text[middle + 1 :] + text[suffix + 1 : middle]


def test_shares_and_cuts_of_rearranging() -> None:
    n, length = 4000, 19
    out = fim(rows_of([[list(range(length))]] * n, seq_len=length), 9)
    chosen = (out.ids_ST == PREFIX).any(axis=1)
    assert deviations(int(chosen.sum()), n, 0.5) < 5
    # A PSM text with an empty prefix looks like SPM, hence the third sentinel decides.
    assert set(np.flatnonzero(chosen)) == set(np.flatnonzero((out.ids_ST == MIDDLE).any(axis=1)))
    second = (out.ids_ST[chosen, 1] == SUFFIX).sum()
    empty_prefix = 2 / (length - 3 + 1) - 1 / (length - 3 + 1) ** 2
    assert deviations(int(second), int(chosen.sum()), 0.5 + 0.5 * empty_prefix) < 5


def test_prompts_stay_untrained_where_they_go() -> None:
    rows = rows_of([[list(range(10, 26))]], seq_len=16)
    labels = without(rows.labels_SU, [1, 2, 3])
    always = FillInTheMiddle(PREFIX, MIDDLE, SUFFIX, rate=1)
    out = always(Rows(rows.positions_S, rows.ids_ST, labels, rows.starts, rows.filled_S), 4)
    for token, label in zip(out.ids_ST[0, 1:].tolist(), out.labels_SU[0, 1:].tolist(), strict=True):
        assert label == (-100 if token in (11, 12, 13) else token)


# Span corruption.


@generated
@given(st.lists(samples(), min_size=1, max_size=4), st.integers(0, 50), st.sampled_from([0.15, 0.5, 0.9]))
def test_spans_filled_back_in_give_the_row(sample: list[list[list[int]]], seed: int, density: float) -> None:
    rows = rows_of(sample)
    augment = SpanCorruption(SENTINELS, eos=EOS, density=density)
    out = augment(rows, seed)
    for row, filled in enumerate(rows.filled_S.tolist()):
        ids = out.ids_ST[row, : out.filled_S[row]].tolist()
        labels = [token for token in out.labels_SU[row].tolist() if token != -100]
        noise, count = augment.corrupted(filled)
        assert ids[-1] == labels[-1] == EOS
        assert len(ids) == filled - noise + count + 1
        assert len(labels) == noise + count + 1
        assert [token for token in ids if token in SENTINELS] == list(SENTINELS[:count])
        assert [token for token in labels if token in SENTINELS] == list(SENTINELS[:count])
        where = {s: labels.index(s) for s in SENTINELS[:count]}
        after = [*list(where.values())[1:], len(labels) - 1]
        span = {s: labels[begin + 1 : end] for (s, begin), end in zip(where.items(), after, strict=False)}
        assert all(span.values())
        assert [t for token in ids[:-1] for t in span.get(token, [token])] == rows.ids_ST[
            row, :filled
        ].tolist()


@pytest.mark.parametrize(("tokens", "expected"), [(512, (77, 26)), (2, (1, 1)), (1, (0, 0)), (20, (3, 1))])
def test_how_much_is_taken_out(tokens: int, expected: tuple[int, int]) -> None:
    assert spans.corrupted(tokens) == expected


@generated
@given(st.floats(0.01, 0.99), st.floats(1, 10))
def test_a_fuller_row_is_never_narrower(density: float, mean_span: float) -> None:
    augment = SpanCorruption(tuple(range(1000)), eos=1, density=density, mean_span=mean_span)
    widths = np.array([augment.widths(tokens) for tokens in range(1, 300)])
    assert (np.diff(widths, axis=0) >= 0).all()


def test_every_way_to_cut_is_as_likely() -> None:
    """6 tokens, 3 of them noise in 2 spans: 2 x 2 ways."""
    augment = SpanCorruption(SENTINELS, eos=EOS, density=0.5, mean_span=1.5)
    n = 4000
    out = augment(rows_of([[[1, 2, 3, 4, 5, 6]]] * n, seq_len=6), 2)
    ways, counts = np.unique(out.ids_ST, axis=0, return_counts=True)
    assert len(ways) == 4
    assert all(deviations(count, n, 0.25) < 5 for count in counts.tolist())


def test_a_prompt_in_a_span_is_not_trained() -> None:
    rows = rows_of([[list(range(1, 17))]], seq_len=16, position=12)
    prompt = Rows(
        rows.positions_S, rows.ids_ST, without(rows.labels_SU, [1, 2, 3]), rows.starts, rows.filled_S
    )
    augment, _, labels = PINNED[2]
    assert augment(prompt, 1).labels_SU.tolist() == [[-100 if label == 4 else label for label in labels]]


# What cannot be.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaskedLanguageModelling(mask=-1, vocab_size=9), "mask must be a token id"),
        (lambda: MaskedLanguageModelling(mask=1, vocab_size=0), "vocab_size must be"),
        (
            lambda: MaskedLanguageModelling(mask=1, vocab_size=9, chosen=1.5),
            r"chosen must be in \[0, 1\], got 1.5",
        ),
        (
            lambda: MaskedLanguageModelling(mask=1, vocab_size=9, masked=0.9, random=0.2),
            "masked .* random must be",
        ),
        (lambda: FillInTheMiddle(1, 1, 2), "sentinels must differ"),
        (lambda: FillInTheMiddle(1, 2, 3, rate=math.nan), "rate must be"),
        (lambda: FillInTheMiddle(1, 2, 3, shortest=4), "shortest must be >= 5"),
        (lambda: SpanCorruption((1, 1), eos=0), "sentinels must differ"),
        (lambda: SpanCorruption((1,), eos=0, density=0), "density must be"),
        (lambda: SpanCorruption((1,), eos=0, mean_span=0.5), "mean_span must be"),
        (lambda: SpanCorruption((1,), eos=0).widths(512), "26 spans of a row of 512 tokens .* got 1"),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()
