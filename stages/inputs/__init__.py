"""Raw text, as files hold it.

paths, patterns, URIs ─► scan ─► Inputs ─► TextSource ─► Group (texts, bad records) ─► tokenise
                                    └────► hashed, fingerprints ─► corpus.json

TextSource, of each file (Reading), on disk or in a store:
pieces ─► hash ─► Inflate ─► Parser: JsonLines, WholeText, Pull (Tar, tfrecord, mds) ─┬─► Record ─► Group
   └───► hash ─► whole file ─► rows of a column: parquet, arrow ──────────────────────┘
"""

from stages.inputs.record import Bad, FileDigest, Group, Reason
from stages.inputs.scan import Choice, InputFile, Inputs, scan
from stages.inputs.source import TextSource
from stages.inputs.spec import RECORD_BYTES, ReadSpec
from stages.inputs.suffixes import TEXT_GLOBS

__all__ = [
    "RECORD_BYTES",
    "TEXT_GLOBS",
    "Bad",
    "Choice",
    "FileDigest",
    "Group",
    "InputFile",
    "Inputs",
    "ReadSpec",
    "Reason",
    "TextSource",
    "scan",
]
