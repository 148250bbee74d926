"""What a plan is made of: where items come from, what is done to them, and where they end."""

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

    An `async def` runs on the engine's loop; a `def` runs in a thread, or in a process where asked.
    """

    def __call__(self, value: A_contra, /) -> B_co | Awaitable[B_co]: ...


class Fold(Protocol[A_contra, B_co]):
    """What joins and splits values: n in, m out, with a state that travels in the items it emits.

    `emit` is called until it gives None before the next `accept`, and so is `finish` when the input is over. A state is
    taken after each output, and a fold restored from it goes on with exactly the outputs that would have come next. A
    plan's fold is a prototype: each start works on a `copy.deepcopy` of it.
    """

    def accept(self, value: A_contra, /) -> None:
        """Take one input. Nothing goes out here: an output made inside could be lost when resumed after it."""
        ...

    def emit(self) -> B_co | None:
        """The next output that the inputs so far make up, or None."""
        ...

    def finish(self) -> B_co | None:
        """The next output of what is left when the input is over, or None."""
        ...

    def state(self) -> State:
        """What `restore` needs, as plain JSON data that later calls do not change. Keep it small: it is taken for every
        output."""
        ...

    def restore(self, state: State) -> None:
        """Go on from a `state`. On a fresh copy, before anything else."""
        ...


class Sink(Protocol[A_contra]):
    """Where values end: called in their order, by one thread at a time."""

    def put(self, value: A_contra, /) -> None:
        """Take one value. What it raises ends the plan."""
        ...


class Traced(Protocol):
    """A value or an exception that knows where it came from; `StageFailed` names it."""

    @property
    def provenance(self) -> str:
        """File and row, say: `corpus.jsonl:1234`."""
        ...
