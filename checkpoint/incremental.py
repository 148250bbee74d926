"""What changed since the parent, decided by content.

captured bytes ─► fingerprint of each chunk ─► same as the parent's? ── all of them ─► the parent's root
                                                    │ not all
                                                    ▼
                                               digest ─► held already? ── no ─► pack
                                                    └──────────────────────────► list of digests ─► root

Each rank does this for its share; all shares together are a manifest (`assemble`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from blake3 import blake3
from xxhash import xxh3_128_digest

from checkpoint.capture import Captured, CapturedTensor
from checkpoint.errors import RankFailed
from checkpoint.tensors import TensorSpec, whole
from checkpoint.version import DIGEST_BYTES, EMPTY_ROOT, Manifest, StoredTensor
from checkpoint.writer import Save

FINGERPRINT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a tensor that is stored.

    Attributes:
        spec: its element type and shape.
        fingerprints: of its chunks, end to end.
        digests: of its chunks, end to end.
        root: names all of it.
    """

    spec: TensorSpec
    fingerprints: bytes
    digests: bytes
    root: bytes

    def chunks(self) -> Iterator[bytes]:
        """The digests of all that is stored for the tensor: its chunks, and their list where there is one."""
        for at in range(0, len(self.digests), DIGEST_BYTES):
            yield self.digests[at : at + DIGEST_BYTES]
        if len(self.digests) > DIGEST_BYTES:
            yield self.root


@dataclass(frozen=True)
class Lineage:
    """What the next save builds on.

    Attributes:
        parent: the version; None at the beginning.
        records: by tensor name.
        packs: for each chunk that may be referred to, the pack that holds it. Only chunks that this process
            wrote or verified: a rotten one must not be referred to again.
    """

    parent: int | None = None
    records: Mapping[str, Record] = field(default_factory=dict)
    packs: Mapping[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Share:
    """What one rank stored of a version.

    Attributes:
        records: of its tensors, by index.
        packs: for each chunk that it wrote, the pack.
        new_bytes: of its packs.
        blocked_s: how long its save() kept its caller.
    """

    records: Mapping[int, Record]
    packs: Mapping[bytes, str]
    new_bytes: int = 0
    blocked_s: float = 0.0


def root_of(digests: bytes) -> bytes:
    """The root over the digests of a piece's chunks."""
    if not digests:
        return EMPTY_ROOT
    return digests if len(digests) == DIGEST_BYTES else blake3(digests).digest()


def write_changes(
    captured: Captured, lineage: Lineage, save: Save, chunk_bytes: int, blocked_s: float = 0.0
) -> Share:
    """Give the save every captured chunk that the lineage lacks, and make it durable."""
    packs: dict[bytes, str] = {}
    records: dict[int, Record] = {}
    for tensor in captured.tensors:
        record = _fingerprinted(tensor, lineage.records.get(tensor.name), chunk_bytes)
        contents = [*_cut(tensor.data, chunk_bytes), memoryview(record.digests)]
        for digest, chunk in zip(record.chunks(), contents, strict=False):
            if digest not in lineage.packs and digest not in packs:
                packs[digest] = save.add(digest, chunk)
        records[tensor.index] = record
    save.seal()
    return Share(records, packs, save.new_bytes, blocked_s)


def assemble(captured: Captured, lineage: Lineage, shares: Sequence[Share]) -> tuple[Manifest, Lineage]:
    """One manifest of all ranks' shares, and the lineage for the save after this one, still without its parent.

    Raises:
        RankFailed: a tensor is in no share or in two, or is not what was captured, or no pack holds one of its
            chunks.
    """
    packs = dict(lineage.packs)
    found: dict[int, Record] = {}
    for rank, share in enumerate(shares):
        for digest, pack in share.packs.items():
            packs.setdefault(digest, pack)
        for index, record in share.records.items():
            if not 0 <= index < len(captured.names):
                raise RankFailed(f"rank {rank} stored tensor {index} of {len(captured.names)}")
            name = captured.names[index]
            if index in found:
                raise RankFailed(f"{name}: stored by rank {rank} and by one before it")
            if record.spec != captured.specs[index]:
                raise RankFailed(
                    f"{name}: rank {rank} stored a {record.spec}, expected {captured.specs[index]}"
                )
            if any(digest not in packs for digest in record.chunks()):
                raise RankFailed(f"{name}: rank {rank} wrote a part of it to no pack")
            found[index] = record
    if left_out := [name for index, name in enumerate(captured.names) if index not in found]:
        raise RankFailed(f"{left_out[0]}: stored by no rank ({len(left_out)} tensors are not)")
    records = {name: found[index] for index, name in enumerate(captured.names)}
    used = {packs[digest] for record in records.values() for digest in record.chunks()}
    manifest = Manifest(
        packs=tuple(sorted(used)),
        tensors=tuple(
            StoredTensor(record.spec, (whole(record.spec),), (record.root,)) for record in records.values()
        ),
        tree=captured.tree,
    )
    kept = {digest: pack for digest, pack in packs.items() if pack in used}
    return manifest, Lineage(None, records, kept)


def _fingerprinted(tensor: CapturedTensor, before: Record | None, chunk_bytes: int) -> Record:
    """The tensor's record; digests are taken only of chunks whose fingerprint is new."""
    chunks = _cut(tensor.data, chunk_bytes)
    fingerprints = [xxh3_128_digest(chunk) for chunk in chunks]
    joined = b"".join(fingerprints)
    if before is None or before.spec != tensor.spec:
        before = Record(tensor.spec, b"", b"", EMPTY_ROOT)
    elif before.fingerprints == joined:
        return before
    digests: list[bytes] = []
    for index, (chunk, fingerprint) in enumerate(zip(chunks, fingerprints, strict=True)):
        at = index * FINGERPRINT_BYTES
        same = before.fingerprints[at : at + FINGERPRINT_BYTES] == fingerprint
        old = before.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        digests.append(old if same else blake3(chunk).digest())
    every = b"".join(digests)
    return Record(tensor.spec, joined, every, root_of(every))


def _cut(data: memoryview, chunk_bytes: int) -> list[memoryview]:
    return [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
