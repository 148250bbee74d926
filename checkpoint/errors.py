"""What can go wrong with versions, drawn once.

    CheckpointError
    ├── NoStore          2  the folder is missing, or is no version store
    ├── NoVersion        2  the store has no such version; those it has are named
    ├── StoreLocked      2  another writer lives
    ├── UnknownFormat    2  written by a newer release, or with another chunk size than asked for
    ├── WrongState       2  the live parts do not fit the version; every difference is listed
    ├── NotStorable      2  a part holds something that is neither a plain tensor nor plain data
    ├── StoreUnwritable  2  the system refuses access: permissions, a read-only disk, a file where a folder is due
    ├── StoreFull        1  no space, or no quota, left
    ├── StoreFailed      1  the disk failed
    ├── StoreDamaged     1  bytes are not what was written; version, tensor and pack are named
    ├── Fenced           1  another writer committed the version that was ours to write; this one has stopped
    ├── RankFailed       1  ranks that save together fail, or disagree, in a way that is not the store's
    └── RankLost         1  another rank has ended, or cannot be reached

The figure is `exit_code`: 2 is the user's mistake, 1 a failure. What one rank raises, all raise: `told` and
`retold` carry an error to the others, which see the same class and which rank it came from.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from checkpoint import strict
from checkpoint.strict import JSON

# What a rank says of an error is bounded, however long the error's own text is.
_TOLD_CHARACTERS = 4000
_TOLD_DIFFERENCES = 1000


class CheckpointError(Exception):
    """Anything this package refuses or fails to do."""

    exit_code: int = 1

    def told(self) -> Mapping[str, JSON]:
        """What another rank needs to raise the same."""
        return {"message": str(self)[:_TOLD_CHARACTERS]}

    @classmethod
    def retold(cls, told: Mapping[str, JSON], rank: int) -> Self:
        """The error of another rank. Raises Malformed for what `told` cannot have given."""
        return cls(_of_rank(told, rank))


def _of_rank(told: Mapping[str, JSON], rank: int) -> str:
    return f"rank {rank}: {strict.text(told.get('message'), 'the message of an error')}"


class NoStore(CheckpointError):
    exit_code = 2


class NoVersion(CheckpointError):
    exit_code = 2


class StoreLocked(CheckpointError):
    """Another writer lives; `pid` is its process where it is known."""

    exit_code = 2

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid

    def told(self) -> Mapping[str, JSON]:
        return {**super().told(), "pid": self.pid}

    @classmethod
    def retold(cls, told: Mapping[str, JSON], rank: int) -> Self:
        return cls(_of_rank(told, rank), strict.optional(told.get("pid"), "a process"))


class UnknownFormat(CheckpointError):
    exit_code = 2


class WrongState(CheckpointError):
    """The live parts do not fit the version. Nothing was changed; `differences` is complete."""

    exit_code = 2

    def __init__(self, version: int, differences: Sequence[str]) -> None:
        self.version = version
        self.differences = tuple(differences)
        count = len(self.differences)
        listed = "\n".join(f"  - {difference}" for difference in self.differences)
        super().__init__(
            f"version {version} does not fit what it was to be restored into; nothing was changed. "
            f"{count} difference{'' if count == 1 else 's'}:\n{listed}"
        )

    def told(self) -> Mapping[str, JSON]:
        listed = [difference[:_TOLD_CHARACTERS] for difference in self.differences[:_TOLD_DIFFERENCES]]
        return {"version": self.version, "differences": listed}

    @classmethod
    def retold(cls, told: Mapping[str, JSON], rank: int) -> Self:
        listed = strict.sequence(told.get("differences"), "differences", most=_TOLD_DIFFERENCES)
        return cls(
            strict.integer(told.get("version"), "a version"),
            [f"rank {rank}: {strict.text(difference, 'a difference')}" for difference in listed],
        )


class NotStorable(CheckpointError):
    exit_code = 2


class StoreUnwritable(CheckpointError):
    exit_code = 2


class StoreFull(CheckpointError):
    exit_code = 1


class StoreFailed(CheckpointError):
    exit_code = 1


class StoreDamaged(CheckpointError):
    """Stored bytes are not what was written.

    Attributes:
        version: the damaged version, where the damage is one version's.
        tensor: the name of the first tensor found damaged; None if the damage is elsewhere.
        pack: the name of the pack file at fault; None if it is the version file.
        last_good: the newest older version that verifies whole; None if there is none or none was sought.
    """

    exit_code = 1

    def __init__(
        self,
        found: str,
        *,
        version: int | None = None,
        tensor: str | None = None,
        pack: str | None = None,
        last_good: int | None = None,
        sought: bool = False,
    ) -> None:
        self.found = found
        self.version = version
        self.tensor = tensor
        self.pack = pack
        self.last_good = last_good
        where = [
            *([f"version {version}"] if version is not None else []),
            *([f"tensor {tensor}"] if tensor is not None else []),
            *([f"pack {pack}"] if pack is not None else []),
        ]
        message = f"{', '.join(where) or 'the store'} is damaged: {found}"
        if last_good is not None:
            message += f". The last good version is {last_good}: go on from it with --allow-older"
        elif sought:
            message += ". No older version is whole either"
        super().__init__(message)

    def told(self) -> Mapping[str, JSON]:
        return {
            "found": self.found[:_TOLD_CHARACTERS],
            "version": self.version,
            "tensor": self.tensor,
            "pack": self.pack,
            "last_good": self.last_good,
        }

    @classmethod
    def retold(cls, told: Mapping[str, JSON], rank: int) -> Self:
        names = {key: told.get(key) for key in ("tensor", "pack")}
        return cls(
            f"{strict.text(told.get('found'), 'what was found')} (found by rank {rank})",
            version=strict.optional(told.get("version"), "a version"),
            tensor=None if names["tensor"] is None else strict.text(names["tensor"], "a tensor"),
            pack=None if names["pack"] is None else strict.text(names["pack"], "a pack"),
            last_good=strict.optional(told.get("last_good"), "the last good version"),
        )


class Fenced(CheckpointError):
    exit_code = 1


class RankFailed(CheckpointError):
    exit_code = 1


class RankLost(CheckpointError):
    """Another rank has ended, or cannot be reached; `rank` is which."""

    exit_code = 1

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank

    def told(self) -> Mapping[str, JSON]:
        return {**super().told(), "rank": self.rank}

    @classmethod
    def retold(cls, told: Mapping[str, JSON], rank: int) -> Self:
        return cls(_of_rank(told, rank), strict.integer(told.get("rank"), "a rank"))


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENOENT,
}


@contextmanager
def naming(doing: str, path: Path, full: str = "") -> Iterator[None]:
    """Turn an OSError inside the block into the error of ours that says what was done to which path.

    `full` says of a full disk what became of the work; it is a sentence, with a space after it.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NO_SPACE:
            raise StoreFull(
                f"{path}: no space left while {doing} ({reason}). {full}Free some space and try again"
            ) from error
        if error.errno in _REFUSED:
            raise StoreUnwritable(
                f"{path}: refused while {doing} ({reason}): check the path, its permissions and the disk"
            ) from error
        raise StoreFailed(f"{path}: failed while {doing} ({reason})") from error
