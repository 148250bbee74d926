"""A version file: what a version is, and its bytes.

    "HRVERS1\\n" | header bytes u64 | manifest bytes u64 | roots u64    32
    header                   json: version, parent, step, time, bytes, seconds, summary
    blake3 of all before     32; the header is read and trusted alone
    manifest                 json: packs, tensors, tree
    roots                    32 each, one a piece, in the tensors' order
    blake3 of all before     32

The manifest's `tensors` are [dtype, shape] for a tensor in one piece, [dtype, shape, [[offset, shape], …]]
else; `tree` has one entry a part, as tree.py writes it. A piece's root is the blake3 of its bytes where it is
one chunk; where it is more, of its list, the chunks' digests end to end, which is a chunk itself. `packs`
says where to look first: what a pack holds, its own index says. Keys that a reader does not know are passed
over.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from checkpoint import strict
from checkpoint.errors import NotStorable
from checkpoint.layout import PACK_NAME
from checkpoint.strict import JSON, Malformed
from checkpoint.tensors import (
    MAX_DIMENSIONS,
    MAX_PIECES,
    MAX_TENSOR_BYTES,
    Piece,
    TensorSpec,
    check_coverage,
    whole,
)
from checkpoint.tree import PART_NAME, from_json, plain_json, to_json

MAGIC = b"HRVERS1\n"
DIGEST_BYTES = 32
MAX_HEADER_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 1 << 30
MAX_TENSORS = 1 << 24
PREFIX = struct.Struct("<8sQQQ")
EMPTY_ROOT = blake3(b"").digest()


@dataclass(frozen=True)
class VersionInfo:
    """What the header of a version says.

    Attributes:
        version: its number; 1 is the first.
        parent: the version that it was made from; None for the first of a run.
        step: the training step.
        time: unix seconds of the commit.
        new_bytes: size of the packs written for it, their indices included.
        total_bytes: of its tensors, tied ones counted once.
        blocked_s: how long save() kept its caller.
        written_s: from the copy's end until all but the version file was durable.
        restored_from: the version whose content this one makes the head; None for a saved one.
        summary: what the caller gave.
    """

    version: int
    parent: int | None
    step: int
    time: float
    new_bytes: int
    total_bytes: int
    blocked_s: float = 0.0
    written_s: float = 0.0
    restored_from: int | None = None
    summary: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a version: its spec, its pieces and a root for each of them."""

    spec: TensorSpec
    pieces: tuple[Piece, ...]
    roots: tuple[bytes, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything of a version but the header.

    Attributes:
        packs: names of the packs that hold its chunks.
        tensors: by the index that the tree refers to.
        tree: each part's JSON.
    """

    packs: tuple[str, ...]
    tensors: tuple[StoredTensor, ...]
    tree: Mapping[str, JSON]

    def names(self) -> list[str]:
        """Each tensor's name, `part/key/…`; of tied ones the first in the tree."""
        found: dict[int, str] = {}
        for part, tree in self.tree.items():
            from_json(tree, lambda name, index: found.setdefault(index, name), part)
        return [found[index] for index in range(len(self.tensors))]

    def plain(self, part: str) -> JSON:
        """A part's plain data, without the tensors. Raises KeyError."""
        return plain_json(self.tree[part])

    def leaves(self, part: str) -> dict[str, int]:
        """All tensor names of a part, tied ones too, each with its tensor's index. Raises KeyError."""
        found: dict[str, int] = {}
        from_json(self.tree[part], found.setdefault, part)
        return found


def encode_version(info: VersionInfo, manifest: Manifest) -> bytes:
    """The bytes of a version file.

    Raises:
        NotStorable: the summary is no plain data, or it or the tree is beyond bounds.
    """
    header = strict.encode(header_to_json(info))
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(
            f"the summary of a version has {len(header)} bytes, at most {MAX_HEADER_BYTES} are stored"
        )
    body = strict.encode(
        {
            "packs": list(manifest.packs),
            "tensors": [_tensor_to_json(tensor) for tensor in manifest.tensors],
            "tree": manifest.tree,
        }
    )
    if len(body) > MAX_MANIFEST_BYTES:
        raise NotStorable(f"a manifest of {len(body)} bytes, at most {MAX_MANIFEST_BYTES} are stored")
    roots = [root for tensor in manifest.tensors for root in tensor.roots]
    head = PREFIX.pack(MAGIC, len(header), len(body), len(roots)) + header
    data = b"".join([head, blake3(head).digest(), body, *roots])
    return data + blake3(data).digest()


def header_to_json(info: VersionInfo) -> Mapping[str, JSON]:
    header: dict[str, JSON] = {
        "version": info.version,
        "parent": info.parent,
        "step": info.step,
        "time": info.time,
        "new_bytes": info.new_bytes,
        "total_bytes": info.total_bytes,
        "blocked_s": info.blocked_s,
        "written_s": info.written_s,
        "summary": to_json(info.summary, "summary", lambda name, value: None),
    }
    if info.restored_from is not None:
        header["restored_from"] = info.restored_from
    return header


def _tensor_to_json(tensor: StoredTensor) -> JSON:
    plain: list[JSON] = [tensor.spec.dtype, list(tensor.spec.shape)]
    if tensor.pieces != (whole(tensor.spec),):
        plain.append([[list(piece.offset), list(piece.shape)] for piece in tensor.pieces])
    return plain


def header_bytes(prefix: bytes, file_bytes: int) -> int:
    """How many bytes from the file's beginning hold the header and its checksum.

    Raises:
        Malformed: this is no version file, or it is longer or shorter than it says.
    """
    if len(prefix) < PREFIX.size:
        raise Malformed(f"a version file of {file_bytes} bytes is cut short")
    magic, header, body, roots = PREFIX.unpack_from(prefix)
    if magic != MAGIC:
        raise Malformed("it does not begin as a version file does")
    if header > MAX_HEADER_BYTES or body > MAX_MANIFEST_BYTES or roots > MAX_TENSORS:
        raise Malformed("its sizes make no sense")
    expected = PREFIX.size + header + DIGEST_BYTES + body + roots * DIGEST_BYTES + DIGEST_BYTES
    if file_bytes != expected:
        raise Malformed(f"it has {file_bytes} bytes, expected {expected}")
    return PREFIX.size + int(header) + DIGEST_BYTES


def decode_header(data: bytes, number: int) -> VersionInfo:
    """The header, from as many bytes as `header_bytes` said. Raises Malformed."""
    if blake3(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise Malformed("its header does not match its checksum")
    info = header_from_json(strict.decode(data[PREFIX.size : -DIGEST_BYTES], "its header"))
    if info.version != number:
        raise Malformed(f"it says that it is version {info.version}")
    return info


def header_from_json(value: JSON) -> VersionInfo:
    """What `header_to_json` gave. Raises Malformed."""
    fields = strict.mapping(value, "its header")
    return VersionInfo(
        version=strict.integer(fields.get("version"), "version", least=1),
        parent=strict.optional(fields.get("parent"), "parent", least=1),
        step=strict.integer(fields.get("step"), "step"),
        time=strict.number(fields.get("time"), "time"),
        new_bytes=strict.integer(fields.get("new_bytes"), "new_bytes"),
        total_bytes=strict.integer(fields.get("total_bytes"), "total_bytes"),
        blocked_s=strict.number(fields.get("blocked_s"), "blocked_s"),
        written_s=strict.number(fields.get("written_s"), "written_s"),
        restored_from=strict.optional(fields.get("restored_from"), "restored_from", least=1),
        summary=strict.mapping(plain_json(strict.mapping(fields.get("summary"), "summary")), "summary"),
    )


def decode_version(data: bytes, number: int) -> tuple[VersionInfo, Manifest]:
    """All of a version file.

    Raises:
        Malformed: anything in it is not as `encode_version` writes it.
    """
    body_at = header_bytes(data[: PREFIX.size], len(data))
    if blake3(data[:-DIGEST_BYTES]).digest() != data[-DIGEST_BYTES:]:
        raise Malformed("it does not match its checksum")
    info = decode_header(data[:body_at], number)
    _, _, body, count = PREFIX.unpack_from(data)
    roots_at = body_at + body
    roots = [
        data[at : at + DIGEST_BYTES] for at in range(roots_at, roots_at + count * DIGEST_BYTES, DIGEST_BYTES)
    ]
    fields = strict.mapping(strict.decode(data[body_at:roots_at], "its manifest"), "its manifest")
    manifest = Manifest(
        packs=tuple(
            _pack_name(name) for name in strict.sequence(fields.get("packs"), "packs", most=MAX_TENSORS)
        ),
        tensors=_tensors(strict.sequence(fields.get("tensors"), "tensors", most=count), roots),
        tree=strict.mapping(fields.get("tree"), "tree"),
    )
    _check_tree(manifest)
    total = sum(tensor.spec.nbytes for tensor in manifest.tensors)
    if total != info.total_bytes:
        raise Malformed(f"its tensors have {total} bytes, its header says {info.total_bytes}")
    return info, manifest


def _pack_name(value: JSON) -> str:
    name = strict.text(value, "a pack's name")
    if not PACK_NAME.fullmatch(name):
        raise Malformed(f"{name[:60]!r} is no pack's name")
    return name


def _tensors(entries: Sequence[JSON], roots: list[bytes]) -> tuple[StoredTensor, ...]:
    tensors: list[StoredTensor] = []
    used = 0
    for entry in entries:
        fields = strict.sequence(entry, "a tensor", most=3)
        if len(fields) < 2:
            raise Malformed("a tensor without a shape")
        spec = TensorSpec(strict.text(fields[0], "an element type"), _integers(fields[1], "a shape"))
        pieces = (whole(spec),) if len(fields) == 2 else _pieces(fields[2])
        if len(fields) == 3:
            check_coverage(spec, pieces)
        tensors.append(StoredTensor(spec, pieces, tuple(roots[used : used + len(pieces)])))
        used += len(pieces)
    if used != len(roots):
        raise Malformed(f"{used} pieces and {len(roots)} roots")
    return tuple(tensors)


def _pieces(value: JSON) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    for entry in strict.sequence(value, "pieces", most=MAX_PIECES):
        fields = strict.sequence(entry, "a piece", most=2)
        if len(fields) != 2:
            raise Malformed("a piece without a shape")
        pieces.append(Piece(_integers(fields[0], "an offset"), _integers(fields[1], "a piece's shape")))
    return tuple(pieces)


def _integers(value: JSON, what: str) -> tuple[int, ...]:
    entries = strict.sequence(value, what, most=MAX_DIMENSIONS)
    return tuple(strict.integer(entry, what, most=MAX_TENSOR_BYTES) for entry in entries)


def _check_tree(manifest: Manifest) -> None:
    """Every tensor is in the tree, and every index in the tree is a tensor's."""
    seen: set[int] = set()

    def visit(name: str, index: int) -> int:
        if not 0 <= index < len(manifest.tensors):
            raise Malformed(f"{name} is tensor {index} of {len(manifest.tensors)}"[:200])
        seen.add(index)
        return index

    for part, tree in manifest.tree.items():
        if not PART_NAME.fullmatch(part):
            raise Malformed(f"{part[:60]!r} is no part's name")
        strict.mapping(tree, f"part {part}")
        from_json(tree, visit, part)
    if len(seen) != len(manifest.tensors):
        raise Malformed(f"{len(manifest.tensors) - len(seen)} tensors are in no part")
