"""Zstandard, piece by piece, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from stages.inputs.lines import Refused

_SLICE_BYTES = 1 << 10
"""A compressed block of 4 bytes may stand for 128 KiB, so a slice of this size for 32 MiB at the worst."""
_PIECE_BYTES = 1 << 20


class Inflate:
    """Any number of frames end to end, as `zstd` and `pzstd` write them."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._inside = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Pieces of what `data` stands for. Raises ValueError where it is not zstd, after what came before."""
        held: list[bytes] = []
        size = 0
        try:
            for at in range(0, len(data), _SLICE_BYTES):
                for piece in self._slice(data[at : at + _SLICE_BYTES]):
                    held.append(piece)
                    size += len(piece)
                if size >= _PIECE_BYTES:
                    yield b"".join(held)
                    held, size = [], 0
        except ValueError:
            if size:  # what came before the damage is whole
                yield b"".join(held)
            raise
        if size:
            yield b"".join(held)

    def finish(self) -> Refused | None:
        """What is wrong with the end, if anything."""
        if not self._inside:
            return None
        return Refused("truncated_zstd", "the compressed file ends in the middle of a frame")

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
