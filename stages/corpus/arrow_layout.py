"""The arrow store's files: their names, columns and sizes. FORMATS.md gives the reasons.

tokens-00000.arrow   a row a document: tokens; record batches of about BATCH_TOKENS, cut between documents
bounds.arrow         documents + 1 rows in one record batch: the token address at which each document begins
lengths.arrow        a row a document in one record batch: its tokens
bounds-00001.arrow   …and lengths-00001.arrow: of the same corpus after its first append
"""

from __future__ import annotations

import re

import pyarrow as pa

from stages.corpus.meta import Dtype

TOKENS, BOUND, LENGTH = "tokens", "bound", "length"
BOUNDS_FILE, LENGTHS_FILE = "bounds.arrow", "lengths.arrow"
_SHARD = re.compile(r"tokens-\d{5,}\.arrow")
_INDEX = re.compile(r"(bounds|lengths)(?:-(\d{5,}))?\.arrow")

BATCH_TOKENS = 16 << 20
"""A record batch ends with the document that reaches this. Large, so that few runs go over its end (1 in
8,000 runs of 2,048 tokens), and bounded, since a batch is built in memory."""
SHARD_TOKENS = 1 << 30
"""A shard ends with the record batch that reaches this: 2 or 4 GiB, small enough to copy, few enough to hold
open."""


def shard_file(number: int) -> str:
    return f"tokens-{number:05d}.arrow"


def is_shard(name: str) -> bool:
    return _SHARD.fullmatch(name) is not None


def index_files(generation: int) -> tuple[str, str]:
    """The names of bounds and lengths. An append writes others beside those that readers may be opening."""
    if not generation:
        return BOUNDS_FILE, LENGTHS_FILE
    return f"bounds-{generation:05d}.arrow", f"lengths-{generation:05d}.arrow"


def index_generation(name: str) -> int | None:
    """Which generation an index file is of; None where the name is no index file's."""
    found = _INDEX.fullmatch(name)
    return None if found is None else int(found[2] or 0)


def tokens_type(dtype: Dtype) -> pa.DataType:
    values = {"uint16": pa.uint16(), "uint32": pa.uint32()}[dtype]
    return pa.large_list(pa.field("item", values, nullable=False))


def tokens_schema(dtype: Dtype) -> pa.Schema:
    return pa.schema([pa.field(TOKENS, tokens_type(dtype), nullable=False)])


def bounds_schema() -> pa.Schema:
    return pa.schema([pa.field(BOUND, pa.int64(), nullable=False)])


def lengths_schema() -> pa.Schema:
    return pa.schema([pa.field(LENGTH, pa.uint32(), nullable=False)])
