"""corpus.json: what a corpus is. Written last, so that its appearance is the commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import TypeAdapter, ValidationError

from stages.errors import CorpusDamaged, CorpusNotFound, CorpusUnsupported
from stages.storage import DurableFile

FORMAT = 1
NAME = "corpus.json"
MARKER = "packing.json"
"""Lies in a folder whose corpus is being written; what lies beside it without a corpus.json is a killed
writer's."""

Dtype: TypeAlias = Literal["uint16", "uint32"]
StoreName: TypeAlias = Literal["arrow", "lmdb"]
OptionValue: TypeAlias = bool | int | str | tuple[str, ...] | None
Options: TypeAlias = Mapping[str, OptionValue]


def _plain_name(name: str) -> None:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is no plain file name")


@dataclass(frozen=True, slots=True)
class SpecialToken:
    token: str
    id: int


@dataclass(frozen=True, slots=True)
class TokenizerMeta:
    """Which tokenizer made the ids. Its file lies in the corpus, byte for byte."""

    name: str
    sha256: str
    """Of the file's bytes: the tokenizer's identity."""
    vocab_size: int
    """The largest id + 1: the rows that a model's embedding needs."""
    eos: SpecialToken | None
    """What ends every document; None: nothing does."""
    bos: SpecialToken | None
    pad: SpecialToken | None

    def __post_init__(self) -> None:
        _plain_name(self.name)


@dataclass(frozen=True, slots=True)
class FileMeta:
    """A file of the corpus as it was written: its size is checked at every opening, its checksum by
    verify()."""

    name: str
    bytes: int
    blake3: str

    def __post_init__(self) -> None:
        _plain_name(self.name)

    @classmethod
    def of(cls, file: DurableFile) -> Self:
        """Of a file that has been written to its end."""
        return cls(name=file.path.name, bytes=file.size, blake3=file.blake3)


@dataclass(frozen=True, slots=True)
class ShardMeta:
    file: FileMeta
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class InputMeta:
    """What one input argument held: for a folder the digest covers every file's relative path, size and
    content."""

    name: str
    files: int
    bytes: int
    blake3: str


@dataclass(frozen=True, slots=True)
class QuarantineMeta:
    """Records that were kept aside."""

    file: FileMeta
    records: int
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DedupMeta:
    """Documents that were left out because their text had come before."""

    hashes: FileMeta
    """Of every document that is in the corpus, 16 bytes of the blake3 of its text."""
    dropped: int


@dataclass(frozen=True, slots=True)
class PartMeta:
    """Which part of a larger corpus this is."""

    index: int
    """From 1."""
    of: int
    names: tuple[str, ...]
    """The labels of all arguments, of all parts."""
    folders: tuple[bool, ...]
    files: FileMeta
    """A line a file that this part has read, for the merged corpus's fingerprints."""

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.of:
            raise ValueError(f"a part is one of 1 to {self.of}, got {self.index}")


@dataclass(frozen=True, slots=True)
class CorpusMeta:
    format: int
    store: StoreName
    dtype: Dtype
    documents: int
    tokens: int
    digest: str
    """Of the documents' ids and lengths alone: equal for equal content, whatever the store, shards or
    machine."""
    tokenizer: TokenizerMeta
    shards: tuple[ShardMeta, ...]
    """The files of tokens, in order; none where the store is lmdb, whose bytes depend on how they were written."""
    bounds: FileMeta
    lengths: FileMeta
    inputs: tuple[InputMeta, ...]
    options: Options
    """What the content depends on beside inputs and tokenizer."""
    quarantine: QuarantineMeta | None
    dedup: DedupMeta | None = None
    part: PartMeta | None = None

    def __post_init__(self) -> None:
        if self.store != "arrow":
            return
        for what, total in (("documents", self.documents), ("tokens", self.tokens)):
            found = sum(getattr(shard, what) for shard in self.shards)
            if found != total:
                raise ValueError(f"{what} is {total}, but the shards sum to {found}")

    def files(self) -> tuple[FileMeta, ...]:
        """Every file that was written with a checksum; the tokenizer's is apart, by its sha256."""
        kept = () if self.quarantine is None else (self.quarantine.file,)
        hashes = () if self.dedup is None else (self.dedup.hashes,)
        read = () if self.part is None else (self.part.files,)
        return (*(shard.file for shard in self.shards), self.bounds, self.lengths, *kept, *hashes, *read)

    def to_json(self) -> bytes:
        """The bytes of corpus.json: keys in the order of the fields, so that equal corpora have equal
        bytes."""
        fields = asdict(self)
        for name in ("dedup", "part"):
            if fields[name] is None:  # absent, as in corpora from before there were such
                del fields[name]
        return json.dumps(fields, indent=1, ensure_ascii=False).encode() + b"\n"


_META = TypeAdapter(CorpusMeta)


def read_meta(folder: Path) -> CorpusMeta:
    """Read a finished corpus's corpus.json. Raises CorpusNotFound, CorpusUnsupported, CorpusDamaged."""
    path = folder / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise CorpusNotFound(_absence(folder)) from error
    except NotADirectoryError as error:
        raise CorpusNotFound(
            f"{folder}: not a folder; a corpus is the folder that tools.pack wrote"
        ) from error
    except OSError as error:
        raise CorpusNotFound(f"{path}: cannot be read: {error.strerror}") from error
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise CorpusDamaged(f"{path}: is no JSON ({error}); pack the corpus again") from error
    found = raw.get("format") if isinstance(raw, dict) else None
    if found != FORMAT:
        raise CorpusUnsupported(
            f"{path}: has format {found!r}, this version reads format {FORMAT}; "
            "read it with the version that wrote it, or pack again"
        )
    try:
        return _META.validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CorpusDamaged(f"{path}: {where or 'corpus'}: {first['msg']}; pack the corpus again") from error


def _absence(folder: Path) -> str:
    if (folder / MARKER).exists():
        return f"{folder}: the packing of this corpus has not finished; run the same tools.pack command again"
    if folder.exists():
        return f"{folder}: holds no {NAME}, so no corpus; pack one there with tools.pack --out {folder}"
    return f"{folder}: no such folder; pack a corpus there with tools.pack --out {folder}"
