"""The order of samples is a bijection, looks random, and never changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.order import BLOCK, Permutation

SIZES = [1000, 10_007, 65_536, 100_000]

# Positions in every stored run depend on these: a change here breaks each resume.
PINNED = {
    (10, 0): [3, 4, 2, 8, 1, 6, 5, 9],
    (10, 1): [8, 6, 3, 1, 4, 9, 2, 5],
    (999, 0): [124, 884, 828, 196, 438, 909, 559, 302],
    (999, 1): [33, 467, 760, 764, 680, 627, 248, 768],
    (1000, 0): [829, 168, 52, 912, 855, 901, 406, 472],
    (1000, 1): [338, 982, 72, 283, 520, 493, 360, 959],
    (12345, 0): [10771, 9925, 3460, 2116, 8182, 5844, 1728, 8983],
    (12345, 1): [1258, 5548, 7583, 2468, 10149, 10222, 9221, 12167],
    (10**9 + 7, 0): [64497496, 107245597, 622817108, 877429612, 715177047, 344688587, 413100219, 658636002],
    (10**9 + 7, 1): [143057607, 338648086, 904743917, 476980646, 193157524, 19451035, 381713162, 796299791],
}


def whole(n: int, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    return Permutation(n, seed, epoch)(np.arange(n))


def chi_square_z(counts: NDArray[np.int64]) -> float:
    """Standard deviations by which `counts`, all expected equal, spread more (or less) than by chance."""
    expected = counts.mean()
    degrees = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))


@pytest.mark.parametrize(("n", "seed"), PINNED)
def test_outputs_are_pinned(n: int, seed: int) -> None:
    assert Permutation(n, seed, 0)(np.arange(8)).tolist() == PINNED[n, seed]


def test_later_epochs_and_large_seeds_are_pinned() -> None:
    indices = np.array([0, 1, 10**9 + 6])
    assert Permutation(10**9 + 7, 2**64 - 1, 3)(indices).tolist() == [660322634, 912987804, 810736402]
    ends = np.array([0, 2**62 - 1])
    assert Permutation(2**62, 0, 2**64 - 1)(ends).tolist() == [
        935438839815127863,
        3174655838760094732,
    ]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 100_000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**64 - 1))
def test_is_a_bijection(n: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(whole(n, seed, epoch)), np.arange(n))


@pytest.mark.parametrize("n", [*range(1, 40), 998, 999, 1000, 1001, 1023, 1024, 1025, 2**16 + 1, 317**2])
def test_is_a_bijection_at_the_edges(n: int) -> None:
    assert np.array_equal(np.sort(whole(n)), np.arange(n))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.sampled_from([7, 999, 1000, 30_000, 10**9 + 7, 2**40 + 1, 2**62]))
def test_each_index_alone_gives_the_same(data: st.DataObject, n: int) -> None:
    """Whatever else is asked for in the same call, in whichever shape and order."""
    permutation = Permutation(n, 5, 2)
    indices = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=6)), dtype=np.int64)
    alone = [int(permutation(np.array([i], dtype=np.int64))[0]) for i in indices]
    assert permutation(indices).tolist() == alone
    assert permutation(indices[::-1]).tolist() == alone[::-1]
    assert permutation(indices.reshape(-1, 1)).tolist() == [[i] for i in alone]
    assert all(0 <= i < n for i in alone)


def test_blocks_give_the_same() -> None:
    n = 2 * BLOCK + 17
    permutation = Permutation(n, 1, 1)
    parts = [permutation(np.arange(start, min(start + 1000, n))) for start in range(0, n, 1000)]
    assert np.array_equal(np.concatenate(parts), permutation(np.arange(n)))


def test_nothing_asked_nothing_given() -> None:
    for n in (5, 5000):
        empty = Permutation(n, 0, 0)(np.array([], dtype=np.int64))
        assert (empty.size, empty.dtype) == (0, np.int64)


@pytest.mark.parametrize("n", [900, *SIZES])
@pytest.mark.parametrize("other", [(1, 0), (0, 1), (1, 1), (2**63, 0)])
def test_seeds_and_epochs_differ_as_chance_would(n: int, other: tuple[int, int]) -> None:
    first, second = whole(n), whole(n, *other)
    assert (first == second).sum() <= 8  # one is expected
    differences = (second - first) % n * 16 // n
    assert abs(chi_square_z(np.bincount(differences, minlength=16))) < 5


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_places_and_samples_are_independent(n: int, seed: int) -> None:
    order = whole(n, seed)
    cells = (np.arange(n) * 8 // n) * 8 + order * 8 // n
    assert abs(chi_square_z(np.bincount(cells, minlength=64))) < 5


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("apart", [1, 2, 32, 101, 256])
def test_neighbours_are_independent(n: int, seed: int, apart: int) -> None:
    order = whole(n, seed)
    near, far = order[:-apart], order[apart:]
    assert abs(np.corrcoef(near, far)[0, 1]) < 5 / np.sqrt(n)
    differences = (far - near) % n * 32 // n
    assert abs(chi_square_z(np.bincount(differences, minlength=32))) < 5


def test_low_bits_are_fair() -> None:
    order = whole(100_000)
    pairs = (order[:-1] % 4) * 4 + order[1:] % 4
    assert abs(chi_square_z(np.bincount(pairs, minlength=16))) < 5


@pytest.mark.parametrize("n", [10, 31, 100, 999])
def test_small_orders_are_uniform_over_seeds(n: int) -> None:
    """Every sample is as likely at every place, and after every other sample."""
    orders = np.stack([whole(n, seed, seed % 3) for seed in range(1500)])
    for place in (0, n // 2, n - 1):
        assert abs(chi_square_z(np.bincount(orders[:, place], minlength=n))) < 5
    steps = (orders[:, 1:] - orders[:, :-1]) % n
    counts = np.bincount(steps.reshape(-1), minlength=n)[1:]  # no sample follows itself
    # Steps within one order are not independent, but for samples without replacement the bias is below 1 / n.
    assert abs(chi_square_z(counts)) < 6
    near, far = orders[:, :-1].reshape(-1), orders[:, 1:].reshape(-1)
    # Without replacement neighbours repel each other: the expected correlation is -1 / (n - 1).
    assert abs(np.corrcoef(near, far)[0, 1] + 1 / (n - 1)) < 5 / np.sqrt(near.size)


@pytest.mark.parametrize("n", [10**5 + 3, 10**6, 2**22 - 1, 10**7 + 19, 10**8, 10**9])
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_large_orders_are_uniform_wherever_one_looks(n: int, where: str) -> None:
    """A stretch of 100,000 places: its samples are spread evenly, and its neighbours are strangers."""
    stretch = 100_000
    begin = {"first": 0, "middle": (n - stretch) // 2, "last": n - stretch}[where]
    order = Permutation(n, 11, 2)(np.arange(begin, begin + stretch))
    assert np.unique(order).size == stretch
    # Drawn without replacement, counts spread less than chance by the share that is drawn.
    drawn = min(stretch / n, 0.999)
    cells = np.bincount(order * 64 // n, minlength=64)
    spread = ((cells - stretch / 64) ** 2 / (stretch / 64)).sum()
    if drawn < 0.5:
        spread /= 1 - drawn
        assert abs(spread - 63) / np.sqrt(2 * 63) < 5
    for apart in (1, 2, 7, 64, 1000):
        near, far = order[:-apart].astype(np.float64), order[apart:].astype(np.float64)
        assert abs(np.corrcoef(near, far)[0, 1]) < 5 / np.sqrt(near.size)
        pairs = (order[:-apart] * 8 // n) * 8 + order[apart:] * 8 // n
        assert abs(chi_square_z(np.bincount(pairs, minlength=64))) < 6
        differences = ((order[apart:] - order[:-apart]) % n) * 32 // n
        assert abs(chi_square_z(np.bincount(differences, minlength=32))) < 5
    assert abs(chi_square_z(np.bincount(order % 16, minlength=16))) < 5


@pytest.mark.parametrize(
    ("n", "seed", "epoch", "message"),
    [
        (0, 0, 0, r"1 <= n <= 2\*\*62, got n=0"),
        (2**62 + 1, 0, 0, "got n="),
        (5, -1, 0, "0 <= seed < .* got seed=-1"),
        (5, 2**64, 0, "got seed="),
        (5, 0, -1, "got epoch=-1"),
    ],
)
def test_nonsense_is_refused(n: int, seed: int, epoch: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Permutation(n, seed, epoch)


@pytest.mark.parametrize("n", [10, 5000])
@pytest.mark.parametrize("index", [-1, "n"])
def test_an_index_outside_is_refused(n: int, index: int | str) -> None:
    with pytest.raises(IndexError, match=rf"indices must be in \[0, {n}\)"):
        Permutation(n, 0, 0)(np.array([0, n if index == "n" else int(index)]))
