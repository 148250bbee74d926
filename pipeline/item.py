"""What travels: an item is a value and the state from which to continue after it."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeAlias, TypeVar

T_co = TypeVar("T_co", covariant=True)

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
State: TypeAlias = "dict[str, JSON]"


class Item(NamedTuple, Generic[T_co]):
    """A value on its way, with where to continue AFTER it.

    Resume travels with the item so that a consumer saves the state of the last item that it *used*;
    nothing that a stage has read ahead can leak into it.
    """

    value: T_co
    resume: State
