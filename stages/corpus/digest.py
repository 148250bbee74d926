"""The content digest: equal for equal documents, whatever store, shards, record batches or machine they went
through."""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from stages.corpus.meta import Dtype

_CONTEXT = b"headrace corpus content 1\n"


class ContentDigest:
    """blake3 over blake3(all ids, little-endian, in the corpus's dtype) and blake3(all lengths, little-endian
    uint32)."""

    def __init__(self, dtype: Dtype) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._tokens = blake3()
        self._lengths = blake3()

    def tokens(self, tokens: NDArray[np.uint16] | NDArray[np.uint32]) -> None:
        self._tokens.update(tokens.astype(self._dtype, copy=False).data.cast("B"))

    def lengths(self, lengths: NDArray[np.uint32]) -> None:
        self._lengths.update(lengths.astype("<u4", copy=False).data.cast("B"))

    def hexdigest(self) -> str:
        whole = blake3(_CONTEXT + self._dtype.str.encode() + b"\n")
        whole.update(self._tokens.digest() + self._lengths.digest())
        return whole.hexdigest()
