"""State to save: parts that hold any tree, random trees, and comparison bit by bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from hypothesis import strategies as st
from torch import Tensor

from checkpoint import Checkpointer, Store, Tree
from checkpoint.tensors import ITEM_BYTES


class Box:
    """A part that is a tree; restoring gives it the stored one."""

    def __init__(self, state: Mapping[str, Tree]) -> None:
        self.state = dict(state)
        self.loads = 0

    def state_dict(self) -> Mapping[str, Tree]:
        return self.state

    def load_state_dict(self, state: dict[str, Tree], /) -> None:
        self.state = state
        self.loads += 1


class Taker(Box):
    """A box that fits every version: what it lacks is made."""

    def differences(self, stored: object) -> Sequence[str]:
        return ()


def taken(checkpointer: Checkpointer, version: int | None, *parts: str) -> dict[str, dict[str, Tree]]:
    """The trees of some parts of a version, in fresh memory."""
    boxes = {part: Taker({}) for part in parts}
    checkpointer.restore(version, boxes)
    return {part: box.state for part, box in boxes.items()}


def bits(tensor: Tensor) -> bytes:
    """The tensor's elements in row-major order."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def same(one: object, other: object) -> bool:
    """Whether two trees are equal, tensors bit by bit, sequences whatever their type."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or repr(one) == repr(other)
    return type(one) is type(other) and one == other


def clone(tree: Tree) -> Tree:
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, Mapping):
        return {key: clone(child) for key, child in tree.items()}
    if isinstance(tree, Sequence) and not isinstance(tree, str):
        return [clone(child) for child in tree]
    return tree


def dtype_of(name: str) -> torch.dtype:
    return cast(torch.dtype, getattr(torch, name))


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any element type, shape, layout, and bits, payloads of NaN too."""
    name = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    size = math.prod(shape) * ITEM_BYTES[name]
    seed = draw(st.integers(0, 2**32 - 1))
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    if name == "bool":
        raw &= 1
    tensor = raw.view(dtype_of(name)).reshape(shape)
    layout = draw(st.sampled_from(["contiguous", "transposed", "strided"]))
    if layout == "transposed" and len(shape) >= 2:
        return tensor.transpose(0, -1)
    if layout == "strided" and shape:
        return torch.stack([tensor, tensor], dim=len(shape))[..., 0]
    return tensor


keys = st.one_of(st.text(max_size=4), st.sampled_from(["$", "~", "/", "a/b", "~1"]), st.integers(-3, 300))


def plain() -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.none(), st.booleans(), st.integers(-(2**200), 2**200), st.floats(), st.text(max_size=5)
    )


def _distinct_paths(mapping: Mapping[str | int, Tree]) -> bool:
    return len({str(key) for key in mapping}) == len(mapping)


def trees() -> st.SearchStrategy[dict[str, Tree]]:
    """Nested mappings and lists of tensors and plain data."""
    inner = st.recursive(
        st.one_of(plain(), tensors()),
        lambda child: st.one_of(
            st.lists(child, max_size=3), st.dictionaries(keys, child, max_size=3).filter(_distinct_paths)
        ),
        max_leaves=8,
    )
    return cast(
        "st.SearchStrategy[dict[str, Tree]]",
        st.dictionaries(keys, inner, max_size=4).filter(_distinct_paths),
    )


def pack_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "packs").iterdir())


def all_whole(path: Path) -> list[int]:
    """Verify every version of a store; their numbers."""
    store = Store(path)
    return [store.verify(version).version for version in store.versions()]
