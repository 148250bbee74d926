"""The corpus store: documents as runs of token ids.

    documents ─► claimed ─► CorpusWriter ─► corpus.json ─► open_corpus ─► CorpusReader ─► gather, read, view
                 the folder   arrow, lmdb     the commit                    Spans: which runs, and where to
                                └─ save: what a killed pack goes on from

    parts ─► merge ─► the same bytes as if packed at once             corpus ─► megatron.export

Documents, not fixed rows: packing for any sequence length is an index over `bounds`, and nothing is tokenised
again when that length changes.
"""

from stages.corpus.arrow import ArrowCorpus
from stages.corpus.arrow_writer import ArrowWriter
from stages.corpus.meta import CorpusMeta, SpecialToken, TokenizerMeta
from stages.corpus.opening import open_corpus
from stages.corpus.output import Output, claimed
from stages.corpus.reader import CorpusReader, LocalCorpus, Tokens
from stages.corpus.spans import Spans
from stages.corpus.writer import CorpusWriter, Store, Written

__all__ = [
    "ArrowCorpus",
    "ArrowWriter",
    "CorpusMeta",
    "CorpusReader",
    "CorpusWriter",
    "LocalCorpus",
    "Output",
    "Spans",
    "SpecialToken",
    "Store",
    "TokenizerMeta",
    "Tokens",
    "Written",
    "claimed",
    "open_corpus",
]
