"""What a tensor is to the store: an element type, a shape, and pieces cut into chunks. No torch needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint.strict import Malformed

# Bytes per element. A name is torch's own, so that `getattr(torch, name)` is the element type.
ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}

MAX_DIMENSIONS = 64
MAX_TENSOR_BYTES = 2**56
MAX_PIECES = 4096


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Element type by torch's name, and global shape."""

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise Malformed(f"{self.dtype!r} is no element type that this release knows")
        check_shape(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor, as one rank holds it: the global index of its first element, and its shape."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def check_shape(shape: Sequence[int]) -> None:
    """Raises Malformed if no real tensor has this shape."""
    if len(shape) > MAX_DIMENSIONS:
        raise Malformed(f"a tensor of {len(shape)} dimensions")
    elements = 1
    for size in shape:
        if size < 0:
            raise Malformed(f"a dimension of {size}")
        elements *= max(size, 1)
        if elements > MAX_TENSOR_BYTES:
            raise Malformed(f"a tensor of {elements} elements or more")


def whole(spec: TensorSpec) -> Piece:
    """The piece that is all of a tensor."""
    return Piece((0,) * len(spec.shape), spec.shape)


def check_coverage(spec: TensorSpec, pieces: Sequence[Piece]) -> None:
    """Raises Malformed unless the pieces lie inside the tensor, do not overlap and leave nothing out."""
    if not 1 <= len(pieces) <= MAX_PIECES:
        raise Malformed(f"a tensor in {len(pieces)} pieces")
    for piece in pieces:
        if not len(piece.offset) == len(piece.shape) == len(spec.shape):
            raise Malformed(f"a piece of {len(piece.shape)} dimensions in a tensor {spec}")
        check_shape(piece.shape)
        for start, size, bound in zip(piece.offset, piece.shape, spec.shape, strict=True):
            if start < 0 or start + size > bound:
                raise Malformed(f"a piece at {piece.offset} of shape {piece.shape} in a tensor {spec}")
    covered = sum(piece.elements for piece in pieces)
    if covered != math.prod(spec.shape):
        raise Malformed(f"pieces of {covered} elements in a tensor {spec}")
    _refuse_overlaps(sorted((piece for piece in pieces if piece.elements), key=lambda piece: piece.offset))


def _refuse_overlaps(pieces: Sequence[Piece]) -> None:
    """Boxes overlap if their ranges meet in every dimension; sorted by first index, the search ends early."""
    for index, one in enumerate(pieces):
        for other in pieces[index + 1 :]:
            if one.offset and other.offset[0] >= one.offset[0] + one.shape[0]:
                break
            if all(
                a < b + m and b < a + n
                for a, n, b, m in zip(one.offset, one.shape, other.offset, other.shape, strict=True)
            ):
                raise Malformed(f"pieces at {one.offset} and {other.offset} overlap")


def chunk_count(piece_bytes: int, chunk_bytes: int) -> int:
    """How many chunks a piece is cut into; an empty piece has none."""
    return -(-piece_bytes // chunk_bytes)


def chunk_length(piece_bytes: int, chunk_bytes: int, index: int) -> int:
    """The bytes of one chunk: all have `chunk_bytes` but the last."""
    return min(chunk_bytes, piece_bytes - index * chunk_bytes)
