"""Memory is written again when nobody holds it, and never before."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from stages.reuse import Reused


def address(array: NDArray[np.int64]) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def test_memory_that_nobody_holds_is_reused() -> None:
    memory = Reused()
    array = memory.int64("ids", (4, 8))
    assert (array.shape, array.dtype) == ((4, 8), np.int64)
    first = address(array)
    del array
    assert address(memory.int64("ids", (8, 4))) == first
    assert address(memory.int64("ids", (2,))) == first


DERIVED: dict[str, Callable[[NDArray[np.int64]], object]] = {
    "row": lambda array: array[1],
    "reshaped": lambda array: array.reshape(-1)[3:],
    "tensor": torch.from_numpy,
    "tensor's row": lambda array: torch.from_numpy(array[2])[1:],
    "memoryview": lambda array: memoryview(array[1]),
}


@pytest.mark.parametrize("derive", DERIVED)
def test_memory_that_is_held_in_any_way_is_not(derive: str) -> None:
    memory = Reused()
    array = memory.int64("ids", (4, 8))
    first = address(array)
    held = DERIVED[derive](array)
    del array
    assert address(memory.int64("ids", (4, 8))) != first
    del held
    assert address(memory.int64("ids", (4, 8))) == first


def test_columns_do_not_take_each_others_memory() -> None:
    memory = Reused()
    large = address(memory.int64("ids", (1000,)))
    assert address(memory.int64("sample_ids", (2,))) != large
    assert address(memory.int64("ids", (1000,))) == large


def test_what_is_too_small_gives_way() -> None:
    memory = Reused(kept=1)
    memory.int64("ids", (2,))
    grown = memory.int64("ids", (100,))
    first = address(grown)
    del grown
    assert address(memory.int64("ids", (100,))) == first


def test_beyond_its_bound_memory_belongs_to_the_consumer() -> None:
    memory = Reused(kept=2)
    held = [memory.int64("ids", (8,)) for _ in range(5)]
    for number, array in enumerate(held):
        array[:] = number
    assert [int(array[0]) for array in held] == list(range(5))
    assert len({address(array) for array in held}) == 5


def test_threads_never_share() -> None:
    memory = Reused(kept=3)
    wrong = []

    def work(mark: int) -> None:
        for _ in range(500):
            array = memory.int64("ids", (64,))
            array[:] = mark
            if (array != mark).any():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
