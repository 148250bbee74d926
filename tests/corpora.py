"""Small corpora for tests, written by the real writer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stages.corpus import ArrowWriter, CorpusMeta, TokenizerMeta, claimed


def write_corpus(
    folder: Path,
    documents: Sequence[NDArray[np.integer]],
    *,
    vocab_size: int = 100,
    batch_tokens: int = 1 << 16,
) -> CorpusMeta:
    """A corpus of `documents` (ids below `vocab_size`, at most 65536) in `folder`; its tokenizer is a name only."""
    with claimed(folder) as output:
        output.begin()
        (folder / "tokenizer.json").write_bytes(b"{}")
        writer = ArrowWriter(folder, "uint16", batch_tokens=batch_tokens, shard_tokens=4 * batch_tokens)
        with closing(writer):
            for document in documents:
                writer.append(document.astype(np.uint16), np.array([len(document)], np.uint32))
            written = writer.finish()
        tokenizer = TokenizerMeta("tokenizer.json", "0" * 64, vocab_size, eos=None, bos=None, pad=None)
        meta = CorpusMeta(
            format=1,
            store="arrow",
            dtype="uint16",
            documents=written.documents,
            tokens=written.tokens,
            digest=written.digest,
            tokenizer=tokenizer,
            shards=written.shards,
            bounds=written.bounds,
            lengths=written.lengths,
            inputs=(),
            options={},
            quarantine=None,
        )
        output.commit(meta)
    return meta


def random_documents(
    lengths: Sequence[int], *, vocab_size: int = 100, seed: int = 0
) -> list[NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, vocab_size, length) for length in lengths]
