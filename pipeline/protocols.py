"""What a plan is made of: where items come from, and what is done to each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol, TypeVar

from .item import Item, State

T_co = TypeVar("T_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)
B_co = TypeVar("B_co", covariant=True)


class Source(Protocol[T_co]):
    """Where items come from: asynchronous iteration from a state.

    The items that follow must depend on the source and on `at` alone: whoever reads from an item's `resume`
    gets exactly the items that came after it.
    """

    def read(self, at: State | None) -> AsyncIterator[Item[T_co]]:
        """Iterate from `at`, an item's `resume`; None is the beginning.

        An iterator with an `aclose` (each async generator has one) is closed on the loop that ran it,
        whatever happens, so files opened in it may be closed by a `with` around its `yield`.
        """
        ...


class Map(Protocol[A_contra, B_co]):
    """What is done to each value: stateless, since calls overlap and may run in any order.

    An `async def` runs on the engine's loop; a `def` runs in a thread.
    """

    def __call__(self, value: A_contra, /) -> B_co | Awaitable[B_co]: ...


class Traced(Protocol):
    """A value or an exception that knows where it came from; `StageFailed` names it."""

    @property
    def provenance(self) -> str:
        """File and row, say: `corpus.jsonl:1234`."""
        ...
