"""One shard of the arrow store, mapped: where its record batches' tokens lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.corpus.arrow_layout import TOKENS, tokens_type
from stages.corpus.digest import ContentDigest
from stages.corpus.files import blake3_of, map_arrow, single_column
from stages.corpus.growing import NotResumable
from stages.corpus.meta import Dtype, ShardMeta
from stages.corpus.reader import Tokens
from stages.errors import CorpusDamaged


def map_shard(folder: Path, shard: ShardMeta, dtype: Dtype) -> tuple[Tokens, list[tuple[int, int, int]]]:
    """The whole file as one array of tokens, and of each record batch: documents, position in that array,
    tokens."""
    path = folder / shard.file.name
    buffer, reader = map_arrow(path)
    width = np.dtype(dtype).itemsize
    tokens: Tokens = np.frombuffer(memoryview(buffer), dtype=np.dtype(dtype), count=buffer.size // width)
    batches = []
    for number in range(reader.num_record_batches):
        column = single_column(path, reader, TOKENS, number)
        if not isinstance(column, pa.LargeListArray) or column.type != tokens_type(dtype):
            raise CorpusDamaged(f"{path}: holds {column.type}, corpus.json says {dtype}; pack again")
        values = column.values.buffers()[1]
        address = buffer.address if values is None else values.address
        position, odd = divmod(address - buffer.address, width)
        if odd:
            raise CorpusDamaged(f"{path}: record batch {number} is not aligned to {dtype}; pack again")
        batches.append((len(column), position, len(column.values)))
    for what, expected, at in (("documents", shard.documents, 0), ("tokens", shard.tokens, 2)):
        if (found := sum(batch[at] for batch in batches)) != expected:
            raise CorpusDamaged(f"{path}: holds {found} {what}, corpus.json says {expected}; pack again")
    return tokens, batches


def column_of(batch: pa.RecordBatch) -> tuple[int, Tokens]:
    """Documents of a record batch, and their ids end to end."""
    column = batch.column(TOKENS)
    if not isinstance(column, pa.LargeListArray):
        raise NotResumable(f"a record batch holds {column.type}")
    ids: Tokens = column.values.to_numpy(zero_copy_only=True)
    return len(column), ids


def digested(folder: Path, shard: ShardMeta, dtype: Dtype, digest: ContentDigest) -> tuple[int, int]:
    """Documents and tokens of a finished shard, checked, with its tokens added to `digest`. Raises NotResumable."""
    path = folder / shard.file.name
    try:
        whole = path.stat().st_size == shard.file.bytes and blake3_of(path) == shard.file.blake3
        tokens, batches = map_shard(folder, shard, dtype)
    except (OSError, CorpusDamaged) as error:
        raise NotResumable(f"{path}: {error}") from error
    if not whole:
        raise NotResumable(f"{path}: is not what was recorded")
    for _, position, count in batches:
        digest.tokens(tokens[position : position + count])
    return shard.documents, shard.tokens
