"""The workloads: what is done to the numbers 0, 1, 2, …, where, and how a consumer knows that it got them in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.int64]
Function: TypeAlias = Callable[..., object]
"""Of one number. At a module's top level, or a partial of that: it pickles."""

_MULTIPLIER, _INCREMENT, _MASK = 1664525, 1013904223, 0xFFFFFFFF
_STEPS_PER_MS = 13_000
"""Steps of `churn` in a millisecond of a server's core, about."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Maps over the numbers 0, 1, 2, …: item k is what they make of k."""

    name: str
    maps: tuple[Function, ...]
    """All but the last give a number."""
    on: Literal["thread", "process"]
    width: int
    """Workers of each map."""
    ahead: int
    """Items that a buffer may hold, where a side lets one say."""
    stride: int
    """Each how-many-th item is stamped, timed and compared."""
    use: Callable[[object], int] | None
    """What the consumer does with each item, to a number; None: the items are numbers, and it does nothing."""
    expected: Callable[[int], int]
    """From k to the number of item k."""

    @property
    def group(self) -> int:
        """Items that a side hands over together, where it lets one say: two groups for each worker fill `ahead`."""
        return max(1, self.ahead // 2 // self.width)

    def apply(self, index: int) -> object:
        """Item `index`, made at once."""
        value: object = index
        for function in self.maps:
            value = function(value)
        return value

    def numbers(self, values: Iterator[object]) -> Iterator[object]:
        """The consumer's work on `values`."""
        return values if self.use is None else map(self.use, values)


def add_one(value: int) -> int:
    return value + 1


def filled(value: int, *, elements: int) -> Array:
    """An array (elements,) of 8-byte numbers, each of them `value`."""
    return np.full(elements, value, np.int64)


def total(value: object) -> int:
    """The sum of an array or a CPU tensor."""
    return int(np.asarray(value).sum())


def churn(value: int, *, steps: int) -> int:
    """Python that computes and holds the GIL: `steps` steps of a linear congruential generator."""
    for _ in range(steps):
        value = (value * _MULTIPLIER + _INCREMENT) & _MASK
    return value


def churned(value: int, *, multiplier: int, increment: int) -> int:
    """What all steps of a `churn` come to, in one."""
    return (value * multiplier + increment) & _MASK


def workloads(width: int) -> dict[str, Workload]:
    """All, by name, in the order of the report; `width`: of the wide ones."""
    made = (
        _tiny("tiny", 1, 1),
        _tiny("tiny-wide", 1, width),
        _tiny("tiny-chain", 3, 1),
        _tiny("tiny-chain-wide", 3, width),
        _arrays("arrays-64k", 64 << 10, "thread", width, ahead=32, stride=8),
        _arrays("arrays-1m", 1 << 20, "process", width, ahead=16, stride=2),
        _cpu("cpu-200us", 0.2, "process", width, ahead=32),
        _cpu("cpu-2ms", 2.0, "process", width, ahead=16),
        _cpu("cpu-200us-threads", 0.2, "thread", width, ahead=32),
        _cpu("cpu-2ms-threads", 2.0, "thread", width, ahead=16),
    )
    return {workload.name: workload for workload in made}


def _tiny(name: str, maps: int, width: int) -> Workload:
    return Workload(
        name,
        maps=(add_one,) * maps,
        on="thread",
        width=width,
        ahead=256,
        stride=64,
        use=None,
        expected=maps.__add__,
    )


def _arrays(
    name: str, nbytes: int, on: Literal["thread", "process"], width: int, *, ahead: int, stride: int
) -> Workload:
    elements = nbytes // 8
    return Workload(
        name,
        maps=(partial(filled, elements=elements),),
        on=on,
        width=width,
        ahead=ahead,
        stride=stride,
        use=total,
        expected=elements.__mul__,
    )


def _cpu(name: str, call_ms: float, on: Literal["thread", "process"], width: int, *, ahead: int) -> Workload:
    steps = round(call_ms * _STEPS_PER_MS)
    increment = churn(0, steps=steps)
    return Workload(
        name,
        maps=(partial(churn, steps=steps),),
        on=on,
        width=width,
        ahead=ahead,
        stride=1,
        use=None,
        expected=partial(churned, multiplier=pow(_MULTIPLIER, steps, _MASK + 1), increment=increment),
    )
