"""CRC-32C (Castagnoli), by numpy: about a hundred times the speed of a loop over the bytes.

A CRC is linear: that of a message is the exclusive or of what each byte gives at its distance from the end. So the
bytes of a block are looked up at once, in a table of a row per distance, and blocks are joined by shifting.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_BLOCK = 512


def crc32c(data: bytes) -> int:
    """The checksum of `data`, as iSCSI, ext4 and TFRecord define it."""
    table, shift = _tables()
    blocks = max(1, -(-len(data) // _BLOCK))
    padded = np.zeros(max(blocks * _BLOCK, 4), dtype=np.uint8)
    start = len(padded) - len(data)
    padded[start:] = np.frombuffer(data, dtype=np.uint8)
    # The register begins as ones: that is the first 4 bytes inverted. Zeros before them change nothing.
    head = min(4, len(data))
    padded[start : start + head] ^= 0xFF
    parts = np.bitwise_xor.reduce(table[np.arange(_BLOCK), padded.reshape(blocks, _BLOCK)], axis=1)
    crc = 0
    for part in parts.tolist():
        crc = (
            shift[0][crc & 0xFF]
            ^ shift[1][crc >> 8 & 0xFF]
            ^ shift[2][crc >> 16 & 0xFF]
            ^ shift[3][crc >> 24]
            ^ part
        )
    # What of the ones the data was too short to take.
    if head < 4:
        crc ^= 0xFFFFFFFF >> (8 * head)
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> int:
    """As TFRecord stores it: rotated and moved, so that a checksum of data with checksums in it is none of theirs."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _tables() -> tuple[NDArray[np.uint32], list[list[int]]]:
    """Shape (_BLOCK, 256): what a byte gives at each place of a block. And 4 tables that shift by a block."""
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = np.where(last & 1, last >> 1 ^ np.uint32(_POLYNOMIAL), last >> 1)
    table = np.empty((_BLOCK, 256), dtype=np.uint32)
    table[-1] = last
    for at in range(_BLOCK - 2, -1, -1):
        table[at] = _zero(table[at + 1], last)
    shift: list[list[int]] = []
    for byte in range(4):
        values = np.arange(256, dtype=np.uint32) << np.uint32(8 * byte)
        for _ in range(_BLOCK):
            values = _zero(values, last)
        shift.append(values.tolist())
    return table, shift


def _zero(values: NDArray[np.uint32], last: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The registers `values` after one more byte of zero."""
    shifted: NDArray[np.uint32] = values >> np.uint32(8) ^ last[values & np.uint32(0xFF)]
    return shifted
