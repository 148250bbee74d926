"""A corpus as Megatron's indexed dataset: `PREFIX.bin` and `PREFIX.idx`, which Megatron-LM, NeMo and others train on.

    documents ─► PREFIX.bin: ids end to end ─► PREFIX.idx: header, sizes, byte offsets, document bounds

The index, little-endian: `MMIDIDX` and two zeros, u64 version 1, u8 the type of an id, u64 sequences, u64 documents
+ 1, int32 the length of each sequence, int64 its offset in bytes, int64 the sequence at which each document begins, and
their number. Each document is one sequence here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from stages.corpus.meta import Dtype
from stages.corpus.reader import LocalCorpus
from stages.corpus.spans import Spans
from stages.errors import CorpusUnsupported, OutputTaken
from stages.storage import DurableFile, sync_folder

_MAGIC = b"MMIDIDX\x00\x00"
_TYPES: Mapping[Dtype, tuple[int, np.dtype[np.uint16] | np.dtype[np.int32]]] = {
    "uint16": (8, np.dtype(np.uint16)),
    "uint32": (4, np.dtype(np.int32)),
}
"""Megatron has no uint32: ids that do not fit into uint16 are its int32."""
_AT_ONCE = 1 << 20


def export(corpus: LocalCorpus, prefix: Path) -> tuple[Path, Path]:
    """Write both files, and return their paths; the index last, so that it stands for a whole dataset.

    Raises OutputTaken where one of them is there, CorpusUnsupported where an id or a length does not fit, OutputError,
    OutputFull.
    """
    data, index = (prefix.with_name(prefix.name + suffix) for suffix in (".bin", ".idx"))
    for path in (data, index):
        if path.exists():
            raise OutputTaken(f"{path}: is there already; choose another prefix, or remove it first")
    if len(corpus) and int(corpus.lengths.max()) > np.iinfo(np.int32).max:
        longest = int(corpus.lengths.argmax())
        raise CorpusUnsupported(f"document {longest} has more tokens than Megatron's int32 can say")
    with ExitStack() as undone:
        for path in (data, index):
            undone.callback(path.unlink, missing_ok=True)
        _write_data(corpus, data)
        _write_index(corpus, index)
        sync_folder(data.parent)
        undone.pop_all()
    return data, index


def _write_data(corpus: LocalCorpus, path: Path) -> None:
    _, dtype = _TYPES[corpus.meta.dtype]
    ids = np.empty(_AT_ONCE, dtype=np.int64)
    with DurableFile(path) as file:
        for begin in range(0, corpus.meta.tokens, _AT_ONCE):
            count = min(_AT_ONCE, corpus.meta.tokens - begin)
            corpus.gather(Spans(*(np.array([value]) for value in (begin, count, 0))), ids)
            if dtype.kind == "i" and int(ids[:count].max()) > np.iinfo(np.int32).max:
                raise CorpusUnsupported(f"token {begin + int(ids[:count].argmax())} does not fit into int32")
            file.write(ids[:count].astype(dtype.newbyteorder("<")).tobytes())


def _write_index(corpus: LocalCorpus, path: Path) -> None:
    code, dtype = _TYPES[corpus.meta.dtype]
    documents = len(corpus)
    with DurableFile(path) as file:
        file.write(_MAGIC + struct.pack("<QBQQ", 1, code, documents, documents + 1))
        for begin in range(0, documents, _AT_ONCE):
            file.write(corpus.lengths[begin : begin + _AT_ONCE].astype("<i4").tobytes())
        for begin in range(0, documents, _AT_ONCE):
            offsets = corpus.bounds[begin : min(begin + _AT_ONCE, documents)] * dtype.itemsize
            file.write(offsets.astype("<i8").tobytes())
        for begin in range(0, documents + 1, _AT_ONCE):
            file.write(np.arange(begin, min(begin + _AT_ONCE, documents + 1), dtype="<i8").tobytes())
