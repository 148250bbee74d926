"""The ranks that make one version together: what each of them does, and what all of them learn.

Every method is a collective: all ranks call it, in the same order, and all of them return or all of them raise.
`Solo` is a process on its own, the same calls with nobody to talk to; `Group` (group.py) is several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from checkpoint import strict
from checkpoint.strict import JSON

T = TypeVar("T")


@dataclass(frozen=True)
class Codec(Generic[T]):
    """How a result travels between ranks. `decode` raises Malformed for what `encode` cannot have given."""

    encode: Callable[[T], JSON]
    decode: Callable[[JSON], T]


INTEGER: Codec[int] = Codec(lambda value: value, lambda value: strict.integer(value, "a number"))
OPTIONAL: Codec[int | None] = Codec(lambda value: value, lambda value: strict.optional(value, "a number"))
TEXT: Codec[str] = Codec(lambda value: value, lambda value: strict.text(value, "a text"))


class Peers(Protocol):
    """`doing` says in a few words what the call is for; ranks that do different things fail.

    An error of one rank is raised by all: by itself as it is, by the others as the same class with its rank.

    Raises:
        RankFailed: a rank failed with an error that is not this package's, or ranks are not in step.
        RankLost: a rank has ended or cannot be reached.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def first(self, doing: str, act: Callable[[], T], codec: Codec[T]) -> T:
        """Rank 0 acts; all get its result. Where rank 0 succeeded it is no error that another rank is lost."""
        ...

    def every(self, doing: str, act: Callable[[], T], codec: Codec[T]) -> Sequence[T]:
        """Every rank acts; all get all results, in rank order."""
        ...

    def together(self, doing: str, act: Callable[[], T]) -> T:
        """Every rank acts and gets its own result, once all have succeeded."""
        ...

    def agree(self, what: str, digest: Callable[[], str]) -> None:
        """Raises RankFailed unless `what` has one digest on all ranks."""
        ...


@dataclass(frozen=True, slots=True)
class Solo:
    """One process."""

    rank: int = 0
    size: int = 1

    def first(self, doing: str, act: Callable[[], T], codec: Codec[T]) -> T:
        return act()

    def every(self, doing: str, act: Callable[[], T], codec: Codec[T]) -> Sequence[T]:
        return [act()]

    def together(self, doing: str, act: Callable[[], T]) -> T:
        return act()

    def agree(self, what: str, digest: Callable[[], str]) -> None:
        return


SOLO = Solo()
