"""What a file's name says about how it is read."""

from __future__ import annotations

from typing import Literal, TypeAlias

from stages.inputs.inflate import Coding

Kind: TypeAlias = Literal["text", "lines", "parquet", "arrow", "tar", "tfrecord", "mds"]

TEXTS = tuple(
    f".{suffix}"
    for suffix in (
        *("txt", "text", "md", "markdown", "rst", "adoc", "org", "tex"),
        *("py", "pyi", "c", "h", "cc", "cpp", "hpp", "rs", "go", "java", "kt", "scala", "cs", "swift"),
        *("js", "ts", "rb", "php", "pl", "lua", "jl", "r", "sh", "sql"),
    )
)
"""Prose and source code: a document a file."""
LINES = (".jsonl", ".ndjson", ".json")

_CODINGS: dict[str, Coding] = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".zstd": "zstd"}
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(LINES, "lines"),
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "tar",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".mds": "mds",
}
_SHORT = {".tgz": (".tar", ".gz"), ".txz": (".tar", ".xz")}
_UNREAD = (
    *(
        ".bz2",
        ".lz4",
        ".br",
        ".snappy",
        ".zip",
        ".7z",
        ".rar",
        ".bin",
        ".idx",
        ".npy",
        ".npz",
        ".pdf",
        ".safetensors",
    ),
    *(".pkl", ".pickle", ".pyd", ".pt", ".pth", ".feather", ".orc", ".avro", ".h5", ".sqlite", ".db"),
)

READ = (
    ".jsonl, .ndjson, .json, .parquet, .arrow, .tar, .tfrecord, .mds or plain text, each but .parquet and .arrow also "
    "with .gz, .xz or .zst"
)

TEXT_GLOBS = (
    *(f"*{suffix}" for suffix in TEXTS),
    *(
        f"*{suffix}{coding}"
        for suffix in (".jsonl", ".ndjson", ".tar", ".tfrecord", ".tfrecords", ".mds")
        for coding in ("", *_CODINGS)
    ),
    *("*.json.gz", "*.json.xz", "*.json.zst", "*.txt.gz", "*.txt.xz", "*.txt.zst"),
    *("*.tgz", "*.txz", "*.parquet", "*.arrow"),
)
"""What is read of a folder where no glob is given. Not `*.json`: most are settings."""


def kind_of(name: str) -> tuple[Kind, Coding] | None:
    """How a file of this name is read; None where it is of a kind that is not. What no suffix tells is text."""
    stem, suffix = _split(name.lower())
    coding: Coding = "plain"
    if suffix in _SHORT:
        inner, outer = _SHORT[suffix]
        return _KINDS[inner], _CODINGS[outer]
    if suffix in _CODINGS:
        coding = _CODINGS[suffix]
        _, suffix = _split(stem)
        if not suffix:
            return None  # a name such as dump.gz says nothing about what is inside
    if suffix in _UNREAD or suffix in _CODINGS:
        return None
    # TensorFlow writes train.tfrecord-00000-of-00010 too.
    kind = "tfrecord" if suffix.startswith((".tfrecord-", ".tfrecords-")) else _KINDS.get(suffix, "text")
    if coding != "plain" and kind in ("parquet", "arrow"):
        return None  # they compress inside, and are read at places, not from front to back
    return kind, coding


def _split(name: str) -> tuple[str, str]:
    stem, dot, suffix = name.rpartition(".")
    return (stem, dot + suffix) if dot and stem else (name, "")
