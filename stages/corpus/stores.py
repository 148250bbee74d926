"""The kinds of store that a corpus can be written in."""

from __future__ import annotations

from collections.abc import Mapping

from stages.corpus.arrow_writer import ArrowStore
from stages.corpus.lmdb_writer import LmdbStore
from stages.corpus.meta import StoreName
from stages.corpus.writer import Store

STORES: Mapping[StoreName, Store] = {"arrow": ArrowStore(), "lmdb": LmdbStore()}
