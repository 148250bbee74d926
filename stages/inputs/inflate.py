"""Decompression, piece by piece, in bounded memory: gzip, xz and zstd, any number of members end to end.

pieces as the file holds them ─► Inflate.feed ─► pieces of at most 2 MiB (zstd: 33 MiB)
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from typing import Literal, Protocol, TypeAlias

import zstandard

from stages.inputs.record import Refused

Coding: TypeAlias = Literal["plain", "gzip", "xz", "zstd"]

PIECE_BYTES = 1 << 20
XZ_MEMORY_BYTES = 256 << 20
"""xz files name the memory that they need, up to 4 GiB; `xz -9` makes ones that need 65 MiB."""
_ZSTD_SLICE_BYTES = 1 << 10
"""A compressed block of 4 bytes may stand for 128 KiB, so a slice of this size for 32 MiB at the worst."""


class Inflate(Protocol):
    """From compressed bytes to what they stand for."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Pieces of what `data` stands for. Raises ValueError where it is damaged, after what came before."""
        ...

    def finish(self) -> Refused | None:
        """What is wrong with the end, if anything."""
        ...

    def damaged(self, error: ValueError) -> Refused:
        """What `feed` raised, as the reason for a bad record."""
        ...


class Plain:
    """Not compressed."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data

    def finish(self) -> Refused | None:
        return None

    def damaged(self, error: ValueError) -> Refused:
        raise error


class Gzip:
    """Members as `gzip`, `pigz` and `bgzip` write them; zeros between and after them are padding."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)
        self._inside = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if not self._inside:
                data = data.lstrip(b"\0")
                if not data:
                    return
                self._inside = True
            try:
                piece = self._member.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise ValueError(f"not gzip, or damaged: {error}") from error
            data = self._member.unconsumed_tail
            if self._member.eof:
                data = self._member.unused_data
                self._member = zlib.decompressobj(wbits=31)
                self._inside = False
            if piece:
                yield piece

    def finish(self) -> Refused | None:
        if self._inside:
            return Refused("truncated_gzip", "the compressed file ends in the middle of a member")
        return None

    def damaged(self, error: ValueError) -> Refused:
        return Refused("broken_gzip", str(error))


class Xz:
    """Streams as `xz` writes them; zeros between and after them are padding."""

    def __init__(self) -> None:
        self._stream = _xz()
        self._inside = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            if not self._inside:
                data = data.lstrip(b"\0")
                if not data:
                    return
                self._inside = True
            try:
                piece = self._stream.decompress(data, PIECE_BYTES)
            except (lzma.LZMAError, MemoryError) as error:
                raise ValueError(f"not xz, or damaged: {error}") from error
            data = b""  # the rest is kept by the stream
            if self._stream.eof:
                data = self._stream.unused_data
                self._stream = _xz()
                self._inside = False
            if piece:
                yield piece
            if self._inside and self._stream.needs_input:
                return

    def finish(self) -> Refused | None:
        if self._inside:
            return Refused("truncated_xz", "the compressed file ends in the middle of a stream")
        return None

    def damaged(self, error: ValueError) -> Refused:
        return Refused("broken_xz", str(error))


class Zstd:
    """Frames as `zstd` and `pzstd` write them."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._inside = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        held: list[bytes] = []
        size = 0
        try:
            for at in range(0, len(data), _ZSTD_SLICE_BYTES):
                for piece in self._slice(data[at : at + _ZSTD_SLICE_BYTES]):
                    held.append(piece)
                    size += len(piece)
                if size >= PIECE_BYTES:
                    yield b"".join(held)
                    held, size = [], 0
        except ValueError:
            if size:  # what came before the damage is whole
                yield b"".join(held)
            raise
        if size:
            yield b"".join(held)

    def finish(self) -> Refused | None:
        if not self._inside:
            return None
        return Refused("truncated_zstd", "the compressed file ends in the middle of a frame")

    def damaged(self, error: ValueError) -> Refused:
        return Refused("broken_zstd", str(error))

    def _slice(self, data: bytes) -> Iterator[bytes]:
        while data:
            try:
                piece = self._frame.decompress(data)
            except zstandard.ZstdError as error:
                raise ValueError(f"not zstd, or damaged: {error}") from error
            self._inside, data = True, b""
            if self._frame.eof:
                data = self._frame.unused_data
                self._frame = self._decompressor.decompressobj()
                self._inside = False
            if piece:
                yield piece


def inflate(coding: Coding) -> Inflate:
    codings: dict[Coding, type[Plain | Gzip | Xz | Zstd]] = {
        "plain": Plain,
        "gzip": Gzip,
        "xz": Xz,
        "zstd": Zstd,
    }
    return codings[coding]()


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
