"""Everything that a stage raises on purpose.

    StagesError                     1  a failure that nothing below says better
    ├── InputError                  2  an input that is missing, unreadable, without text, or no kind that is read
    │   └── BadRecord               2  one record that breaks the rules, under the policy `fail`
    ├── StorageError                2  a place that cannot be read or written
    │   ├── StorageMissing          2  nothing of that path
    │   ├── StorageTaken            2  there already, where nothing was to be replaced
    │   └── StorageUnavailable      1  no answer, or a busy store: worth another try
    ├── TokenizerError              2  a file that is no tokenizer, or one that lacks what the corpus needs
    ├── OutputError                 2  the output folder cannot be written
    │   ├── OutputBusy              2  another process is writing there
    │   ├── OutputTaken             2  it holds another corpus, or files that are not a corpus's
    │   └── OutputFull              1  no space is left, or a quota or a size limit is reached
    ├── CorpusError                 1  a corpus that cannot be read
    │   ├── CorpusNotFound          2  no finished corpus at this path
    │   ├── CorpusUnsupported       2  a format that this version does not read
    │   ├── CorpusDamaged           1  bytes are not what corpus.json says
    │   ├── CorpusClosed            1  used after close()
    │   ├── CorpusTooSmall          2  fewer tokens than one sample needs
    │   └── SpanError               1  a span that does not lie within the corpus, or the buffer
    └── FeedMismatch                2  a saved position that belongs to other data

`exit_code` is what a command ends with: 2 the user's mistake, 1 a failure.
"""

from __future__ import annotations

from typing import ClassVar


class StagesError(Exception):
    exit_code: ClassVar[int] = 1


class InputError(StagesError):
    exit_code: ClassVar[int] = 2


class BadRecord(InputError):
    pass


class StorageError(StagesError):
    exit_code: ClassVar[int] = 2


class StorageMissing(StorageError):
    pass


class StorageTaken(StorageError):
    pass


class StorageUnavailable(StorageError):
    exit_code: ClassVar[int] = 1


class TokenizerError(StagesError):
    exit_code: ClassVar[int] = 2


class OutputError(StagesError):
    exit_code: ClassVar[int] = 2


class OutputBusy(OutputError):
    pass


class OutputTaken(OutputError):
    pass


class OutputFull(OutputError):
    exit_code: ClassVar[int] = 1


class CorpusError(StagesError):
    pass


class CorpusNotFound(CorpusError):
    exit_code: ClassVar[int] = 2


class CorpusUnsupported(CorpusError):
    exit_code: ClassVar[int] = 2


class CorpusDamaged(CorpusError):
    pass


class CorpusClosed(CorpusError):
    pass


class CorpusTooSmall(CorpusError):
    exit_code: ClassVar[int] = 2


class SpanError(CorpusError):
    pass


class FeedMismatch(StagesError):
    exit_code: ClassVar[int] = 2
