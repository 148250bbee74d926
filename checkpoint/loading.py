"""Loading a version's tensors: into live ones in place where they allow it, verified as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from checkpoint.chunks import Span
from checkpoint.incremental import Record
from checkpoint.store import Store, StoredPiece
from checkpoint.tensors import Piece, TensorSpec, whole
from checkpoint.version import Manifest, StoredTensor

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LoadedTensors:
    """Tensors by index, and what the next save may build on."""

    tensors: Mapping[int, torch.Tensor]
    records: Mapping[str, Record]
    packs: Mapping[bytes, str]


def load_tensors(
    store: Store,
    version: int,
    manifest: Manifest,
    indices: Sequence[int],
    live: Mapping[int, Sequence[torch.Tensor]],
    *,
    fingerprints: bool = False,
) -> LoadedTensors:
    """Load tensors of a version; every chunk is compared with its digest.

    Args:
        store: where it is.
        version: its number.
        manifest: its manifest.
        indices: the tensors that are wanted.
        live: tensors that take the bytes, by index, of the right element type and shape; those of other
            indices are allocated.
        fingerprints: whether `records` and `packs` are wanted.

    Raises:
        StoreDamaged: live tensors may have been overwritten in part.
    """
    pieces = store.pieces(version, manifest, indices)
    by_tensor: dict[int, list[StoredPiece]] = {index: [] for index in indices}
    for piece in pieces:
        by_tensor[piece.tensor].append(piece)
        # Nothing is allocated for a tensor before its chunks were found in files of that size.
        for span in store.spans(piece):
            store.pack_of(span.digest, span.nbytes, span.tensor, version)

    tensors: dict[int, torch.Tensor] = {}
    direct: list[tuple[StoredPiece, memoryview]] = []
    marks: dict[tuple[int, int], bytes] = {}
    for index in indices:
        stored = manifest.tensors[index]
        target = next(iter(live.get(index, ())), None)
        tensor = _fresh(stored.spec) if target is None else target
        tensors[index] = tensor
        for piece in by_tensor[index]:
            box = _box(tensor, stored.pieces[piece.piece])
            if _takes_bytes(box):
                direct.append((piece, _bytes_of(box)))
            else:
                # One staged copy at a time: beside the target never more than one piece is held.
                staged = _fresh(TensorSpec(stored.spec.dtype, stored.pieces[piece.piece].shape))
                marks.update(_read(store, version, [(piece, _bytes_of(staged))], fingerprints))
                _copy_into(box, staged)
    marks.update(_read(store, version, direct, fingerprints))
    for index, targets in live.items():
        for other in targets[1:]:
            _copy_into(other, tensors[index])
    if not fingerprints:
        return LoadedTensors(tensors, {}, {})
    return LoadedTensors(tensors, _records(manifest, pieces, marks), _packs(store, version, pieces))


@dataclass(frozen=True)
class PartTensors:
    """The tensors of a part by name within it; of tied ones one, and `tied` gives the name it goes by."""

    tensors: Mapping[str, torch.Tensor]
    tied: Mapping[str, str]


def load_part(store: Store, version: int, part: str) -> PartTensors:
    """Load and verify a part's tensors into fresh memory.

    Raises:
        NoVersion, StoreDamaged: there is nothing whole to load.
        WrongState: the version has no such part.
    """
    _, manifest = store.read(version)
    store.expect_part(version, manifest, part)
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for path, index in manifest.leaves(part).items():
        name = path.removeprefix(f"{part}/")
        if first.setdefault(index, name) != name:
            tied[name] = first[index]
    loaded = load_tensors(store, version, manifest, list(first), {})
    return PartTensors({name: loaded.tensors[index] for index, name in first.items()}, tied)


def _read(
    store: Store, version: int, wanted: Sequence[tuple[StoredPiece, memoryview]], fingerprints: bool
) -> dict[tuple[int, int], bytes]:
    """Fill each view with its piece; the pieces' fingerprints by (tensor, piece)."""
    spans: list[Span] = []
    counts: list[int] = []
    for piece, view in wanted:
        at = 0
        chunks = store.spans(piece)
        for span in chunks:
            spans.append(replace(span, into=view[at : at + span.nbytes]))
            at += span.nbytes
        counts.append(len(chunks))
    found = iter(store.read_chunks(spans, version, fingerprints=fingerprints))
    return {
        (piece.tensor, piece.piece): b"".join(next(found) for _ in range(count))
        for (piece, _), count in zip(wanted, counts, strict=True)
    }


def _records(
    manifest: Manifest, pieces: Sequence[StoredPiece], marks: Mapping[tuple[int, int], bytes]
) -> dict[str, Record]:
    return {
        piece.name: Record(
            manifest.tensors[piece.tensor].spec,
            marks[piece.tensor, piece.piece],
            b"".join(piece.digests),
            piece.root,
        )
        for piece in pieces
        if _in_one_piece(manifest.tensors[piece.tensor])
    }


def _packs(store: Store, version: int, pieces: Sequence[StoredPiece]) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for piece in pieces:
        for span in store.spans(piece):
            found[span.digest] = store.pack_of(span.digest, span.nbytes, span.tensor, version)
        if len(piece.digests) > 1:
            size = len(piece.digests) * len(piece.root)
            found[piece.root] = store.pack_of(piece.root, size, piece.name, version)
    return found


def _in_one_piece(tensor: StoredTensor) -> bool:
    return tensor.pieces == (whole(tensor.spec),)


def _fresh(spec: TensorSpec) -> torch.Tensor:
    import torch

    dtype = getattr(torch, spec.dtype)
    assert isinstance(dtype, torch.dtype)
    return torch.empty(spec.shape, dtype=dtype)


def _box(tensor: torch.Tensor, piece: Piece) -> torch.Tensor:
    """The view of a tensor that a piece fills."""
    for dimension, (start, size) in enumerate(zip(piece.offset, piece.shape, strict=True)):
        tensor = tensor.narrow(dimension, start, size)
    return tensor


def _takes_bytes(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch

    # Not view(-1): a contiguous tensor of one element or none may have any stride, and keeps it.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def _copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    import torch

    with torch.no_grad():
        target.copy_(source)


def can_take(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    """Whether a live tensor may be overwritten in place: of this kind, and no two elements in one place."""
    same = tuple(tensor.shape) == spec.shape and str(tensor.dtype) == f"torch.{spec.dtype}"
    return same and all(
        stride != 0 or size <= 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
