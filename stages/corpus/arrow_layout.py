"""The arrow store's files: their names, columns and sizes. FORMATS.md gives the reasons.

tokens-00000.arrow   a row a document: tokens; record batches of about BATCH_TOKENS, cut between documents
bounds.arrow         documents + 1 rows in one record batch: the token address at which each document begins
lengths.arrow        a row a document in one record batch: its tokens
"""

from __future__ import annotations

import pyarrow as pa

from stages.corpus.meta import Dtype

TOKENS, BOUND, LENGTH = "tokens", "bound", "length"
BOUNDS_FILE, LENGTHS_FILE = "bounds.arrow", "lengths.arrow"

BATCH_TOKENS = 16 << 20
"""A record batch ends with the document that reaches this. Large, so that few runs go over its end (1 in
8,000 runs of 2,048 tokens), and bounded, since a batch is built in memory."""
SHARD_TOKENS = 1 << 30
"""A shard ends with the record batch that reaches this: 2 or 4 GiB, small enough to copy, few enough to hold
open."""


def shard_file(number: int) -> str:
    return f"tokens-{number:05d}.arrow"


def tokens_type(dtype: Dtype) -> pa.DataType:
    values = {"uint16": pa.uint16(), "uint32": pa.uint32()}[dtype]
    return pa.large_list(pa.field("item", values, nullable=False))


def tokens_schema(dtype: Dtype) -> pa.Schema:
    return pa.schema([pa.field(TOKENS, tokens_type(dtype), nullable=False)])


def bounds_schema() -> pa.Schema:
    return pa.schema([pa.field(BOUND, pa.int64(), nullable=False)])


def lengths_schema() -> pa.Schema:
    return pa.schema([pa.field(LENGTH, pa.uint32(), nullable=False)])
