"""Versions of a run: every one whole, each costing what changed.

    parts ─► capture ─► incremental ─► writer ───────────────────────────► store
    (state_  (copy into  (what changed,  (packs, then the version's file:    (list, verify,
     dict)    one pool)   by content)     its appearance is the commit)       roll back)
                                                                               │
    parts ◄─ load_state_dict ◄─ loading (in place, every chunk verified) ◄─ compare (all differences first)

Ranks that save together each capture and write a share, planned alike on all of them; rank 0 commits:

    plan ─► capture ─► incremental ─► packs ─┐
    plan ─► capture ─► incremental ─► packs ─┴─ shares, by peers ─► checked and assembled ─► rank 0: the version's file

`Checkpointer` does all of it for one process, or one group of ranks, at a time; `Store` reads beside it. FORMATS.md
has the bytes.
Importing this package, listing and verifying need no torch.
"""

from checkpoint.checkpointer import Checkpointer, Restored
from checkpoint.errors import (
    CheckpointError,
    Fenced,
    NoStore,
    NotStorable,
    NoVersion,
    RankFailed,
    RankLost,
    StoreDamaged,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreUnwritable,
    UnknownFormat,
    WrongState,
)
from checkpoint.store import Store
from checkpoint.strict import JSON
from checkpoint.tensors import TensorSpec
from checkpoint.tree import Part, Tree
from checkpoint.version import VersionInfo

__all__ = [
    "JSON",
    "CheckpointError",
    "Checkpointer",
    "Fenced",
    "NoStore",
    "NoVersion",
    "NotStorable",
    "Part",
    "RankFailed",
    "RankLost",
    "Restored",
    "Store",
    "StoreDamaged",
    "StoreFailed",
    "StoreFull",
    "StoreLocked",
    "StoreUnwritable",
    "TensorSpec",
    "Tree",
    "UnknownFormat",
    "VersionInfo",
    "WrongState",
]
