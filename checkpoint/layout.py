"""The names inside a store, and the FORMAT file.

    FORMAT                     json: format number, digest, fingerprint, chunk size
    packs/<save>-<k>.pack      <save> is 32 hex digits, drawn for each save; <k> counts that save's packs
    versions/<N, 20 digits>    one file a version
    tags/<name>
    lock                       flock of the one writer; holds its process number
    intents/<save>             json: a save under way; its packs and its parent are to be spared by whoever collects
    *.tmp                      being written; removed by the next writer

No name comes from a file's contents without matching its pattern here first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from checkpoint.errors import UnknownFormat
from checkpoint.strict import Malformed, decode, encode, integer, mapping

FORMAT_NUMBER = 1
DIGEST = "blake3"
FINGERPRINT = "xxh3-128"
DEFAULT_CHUNK_BYTES = 4 << 20
MAX_CHUNK_BYTES = 1 << 30

FOLDERS = ("packs", "versions", "tags", "intents")
# Empty in most stores, so that a copy may lack them; the next writer makes them again.
MAY_LACK = ("tags", "intents")
# What a header can say of itself and of its parent.
MAX_VERSION = 2**63 - 1
TEMPORARY = ".tmp"
PACK_NAME = re.compile(r"[0-9a-f]{32}-[0-9]{6}")
SAVE_NAME = re.compile(r"[0-9a-f]{32}")
_VERSION_NAME = re.compile(r"[0-9]{20}")


@dataclass(frozen=True)
class Format:
    """What holds for the whole store."""

    chunk_bytes: int = DEFAULT_CHUNK_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_bytes <= MAX_CHUNK_BYTES:
            raise ValueError(f"chunk_bytes must be in [1, {MAX_CHUNK_BYTES}], got {self.chunk_bytes}")

    def encode(self) -> bytes:
        return (
            encode(
                {
                    "format": FORMAT_NUMBER,
                    "digest": DIGEST,
                    "fingerprint": FINGERPRINT,
                    "chunk_bytes": self.chunk_bytes,
                }
            )
            + b"\n"
        )

    @staticmethod
    def decode(data: bytes) -> Format:
        """Raises UnknownFormat for another release's store, Malformed for what is none."""
        fields = mapping(decode(data, "FORMAT"), "FORMAT")
        number = integer(fields.get("format"), "its format number", least=1)
        if number != FORMAT_NUMBER:
            raise UnknownFormat(
                f"the store has format {number}; this release reads format {FORMAT_NUMBER}: "
                "use the release that wrote it"
            )
        for key, expected in (("digest", DIGEST), ("fingerprint", FINGERPRINT)):
            if fields.get(key) != expected:
                raise Malformed(f"FORMAT names the {key} {fields.get(key)!r}, expected {expected!r}"[:200])
        return Format(integer(fields.get("chunk_bytes"), "its chunk_bytes", least=1, most=MAX_CHUNK_BYTES))


@dataclass(frozen=True)
class Layout:
    """Where things are, below one store's folder."""

    root: Path

    @property
    def format(self) -> Path:
        return self.root / "FORMAT"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def packs(self) -> Path:
        return self.root / "packs"

    @property
    def versions(self) -> Path:
        return self.root / "versions"

    @property
    def intents(self) -> Path:
        return self.root / "intents"

    def pack(self, name: str) -> Path:
        return self.packs / f"{name}.pack"

    def version(self, number: int) -> Path:
        return self.versions / f"{number:020d}"

    def intent(self, save: str) -> Path:
        return self.intents / save


def temporary(path: Path) -> Path:
    """Where a file is written before it gets its name."""
    return path.with_name(path.name + TEMPORARY)


def version_number(name: str) -> int | None:
    """The version that a file name stands for; None if it is no version's name."""
    number = int(name) if _VERSION_NAME.fullmatch(name) else 0
    return number or None
