"""Trees of tensors and plain data, and the JSON that stands for them.

A tree is nested mappings and sequences with tensors and plain data at its leaves. Its JSON is the same tree,
with

    {"$": 17}                  the tensor of index 17; tied tensors are leaves with one index
    {"$": "nan"}               a float that JSON does not have: "nan", "inf" or "-inf"
    {"$": [[key, value], …]}   a mapping with integer keys (torch optimizers have them) or with the key "$"

A tensor's name is where it is: keys and list indices joined by `/`, escaped as in RFC 6901 (`~0` is `~`, `~1`
is `/`). Tuples come back as lists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, cast

from checkpoint.errors import NotStorable
from checkpoint.strict import JSON, MAX_DEPTH, MAX_INTEGER_DIGITS, Malformed

if TYPE_CHECKING:
    import torch

Tree: TypeAlias = "Mapping[str, Tree] | Sequence[Tree] | torch.Tensor | bool | int | float | str | None"
T = TypeVar("T")
Loaded: TypeAlias = "dict[str, Loaded[T]] | list[Loaded[T]] | T | bool | int | float | str | None"

PART_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")

_MARK = "$"
_ODD_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_INTEGER_BITS = 1024  # below MAX_INTEGER_DIGITS, and enough for the state of any generator
assert _INTEGER_BITS * math.log10(2) < MAX_INTEGER_DIGITS


class Part(Protocol):
    """A share of a run that has state: a torch module, an optimizer, one's own object.

    A part may also define `differences(stored: Mapping[str, TensorSpec]) -> Sequence[str]`: it then says
    itself why the tensors of a version (by name within the part) do not fit it; no difference means that they
    do.
    """

    def state_dict(self) -> Mapping[str, Tree]: ...

    def load_state_dict(self, state: dict[str, Tree], /) -> object: ...


def escape(key: object) -> str:
    """A key as it appears in a name."""
    return str(key).replace("~", "~0").replace("/", "~1")


def join(parent: str, key: object) -> str:
    return f"{parent}/{escape(key)}" if parent else escape(key)


def to_json(tree: object, name: str, tensor: Callable[[str, object], int | None]) -> JSON:
    """The JSON that stands for a tree.

    `tensor` is called with the name of everything that is no plain data; it gives a tensor's index, or None
    for what is no tensor.

    Raises:
        NotStorable: something in the tree is no tensor and no plain data; named by its path.
    """

    def walk(value: object, name: str, depth: int) -> JSON:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            if value.bit_length() > _INTEGER_BITS:
                raise NotStorable(
                    f"{name}: an integer of {value.bit_length()} bits; at most {_INTEGER_BITS} are stored"
                )
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {_MARK: str(float(value))}
        if depth >= MAX_DEPTH:
            raise NotStorable(f"{name}: nested deeper than {MAX_DEPTH}; does it hold itself?")
        if isinstance(value, Mapping):
            return _mapping_to_json(value, name, lambda child, key: walk(child, join(name, key), depth + 1))
        if isinstance(value, (list, tuple)):
            return [walk(child, join(name, index), depth + 1) for index, child in enumerate(value)]
        index = tensor(name, value)
        if index is not None:
            return {_MARK: index}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise NotStorable(
            f"{name}: a {kind} is neither a plain tensor nor plain data (None, bool, int, float, str, mappings and "
            "lists of them): let state_dict() give its contents as such"
        )

    return walk(tree, name, 0)


def _mapping_to_json(
    value: Mapping[object, object], name: str, walk: Callable[[object, object], JSON]
) -> JSON:
    paths: set[str] = set()
    plain = _MARK not in value
    for key in value:
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise NotStorable(f"{name}: the key {key!r} is neither text nor an integer")
        if str(key) in paths:
            raise NotStorable(f"{name}: the keys {str(key)!r} and {int(key)} have the same path")
        paths.add(str(key))
        plain = plain and isinstance(key, str)
    if plain:
        return {str(key): walk(child, key) for key, child in value.items()}
    return {
        _MARK: [
            [key if isinstance(key, str) else _key(key), walk(child, key)] for key, child in value.items()
        ]
    }


def _key(key: object) -> int:
    assert isinstance(key, int)
    return int(key)


def from_json(data: JSON, tensor: Callable[[str, int], T], name: str = "") -> Loaded[T]:
    """The tree that the JSON stands for. `tensor` is called with each tensor's name and index.

    Raises:
        Malformed: `to_json` cannot have written this.
    """

    def walk(value: JSON, name: str, depth: int) -> Loaded[T]:
        if depth > MAX_DEPTH:
            raise Malformed(f"a tree deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            if _MARK not in value:
                return {key: walk(child, join(name, key), depth + 1) for key, child in value.items()}
            if len(value) != 1:
                raise Malformed(f"{name}: a marked object with other keys")
            return marked(value[_MARK], name, depth)
        if isinstance(value, list):
            return [walk(child, join(name, index), depth + 1) for index, child in enumerate(value)]
        assert value is None or isinstance(value, (bool, int, float, str))
        return value

    def marked(value: JSON, name: str, depth: int) -> Loaded[T]:
        if isinstance(value, str):
            if value not in _ODD_FLOATS:
                raise Malformed(f"{name}: {value[:20]!r} is no float")
            return _ODD_FLOATS[value]
        if isinstance(value, list):
            return pairs(value, name, depth)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Malformed(f"{name}: a mark of type {type(value).__name__}")
        return tensor(name, value)

    def pairs(value: Sequence[JSON], name: str, depth: int) -> Loaded[T]:
        found: dict[str | int, Loaded[T]] = {}
        for pair in value:
            if not isinstance(pair, list) or len(pair) != 2:
                raise Malformed(f"{name}: a pair that is none")
            key, child = pair
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise Malformed(f"{name}: a key of type {type(key).__name__}")
            found[key] = walk(child, join(name, key), depth + 1)
        # The type says str because nearly all mappings have such keys only; integer keys come back as they were.
        return cast("dict[str, Loaded[T]]", found)

    return walk(data, name, 0)


def plain_json(data: JSON) -> JSON:
    """The plain data of a tree's JSON: tensors left out of mappings and None in lists, integer keys as text."""

    def keep(value: Loaded[_Tensor]) -> JSON:
        if isinstance(value, dict):
            return {str(key): keep(child) for key, child in value.items() if not isinstance(child, _Tensor)}
        if isinstance(value, list):
            return [keep(child) for child in value]
        return None if isinstance(value, _Tensor) else value

    return keep(from_json(data, lambda name, index: _Tensor()))


class _Tensor:
    """Where a tensor was."""
