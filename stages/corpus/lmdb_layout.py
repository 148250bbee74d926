"""The lmdb store's file: its names, its databases and its keys. FORMATS.md gives the reasons.

documents.lmdb   database `documents`: key the document's number, 8 bytes, big-endian; value its ids, little-endian
                 database `progress`: what a pack has recorded with the documents, while it is at work
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FILE = "documents.lmdb"
LOCK_FILE = f"{FILE}-lock"
DOCUMENTS, PROGRESS = b"documents", b"progress"
DATABASES = 2
PROGRESS_KEY = b"saved"


def key(document: int) -> bytes:
    """Big-endian, so that the order of the keys is the order of the documents."""
    return document.to_bytes(8, "big")


def keys(documents: NDArray[np.int64]) -> list[bytes]:
    data = documents.astype(">u8").tobytes()
    return [data[at : at + 8] for at in range(0, len(data), 8)]
