"""Opening a corpus, whatever store it is in."""

from __future__ import annotations

from pathlib import Path

from stages.corpus.arrow import ArrowCorpus
from stages.corpus.meta import read_meta
from stages.corpus.reader import LocalCorpus


def open_corpus(path: Path | str) -> LocalCorpus:
    """Open a finished corpus, whatever its size in a few ms. The caller closes it, or uses it as a context
    manager.

    Sizes are compared with corpus.json; checksums are compared by `verify()`. Raises CorpusNotFound,
    CorpusUnsupported, CorpusDamaged.
    """
    folder = Path(path)
    meta = read_meta(folder)
    if meta.store == "lmdb":
        # Where it is used first: arrow corpora do without the library.
        from stages.corpus.lmdb import LmdbCorpus

        return LmdbCorpus(folder, meta)
    return ArrowCorpus(folder, meta)
