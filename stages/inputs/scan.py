"""Which files the arguments stand for, in the order in which they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeAlias

from stages.errors import InputError

Kind: TypeAlias = Literal["text", "lines", "lines.zst"]

_LINES = (".jsonl", ".ndjson", ".json")
_NOT_TEXT = (".zst", ".gz", ".bz2", ".xz", ".zip", ".tar", ".parquet", ".arrow", ".bin", ".npy", ".pdf")

TEXT_GLOBS = tuple(
    f"*.{suffix}"
    for suffix in (
        *("txt", "text", "md", "markdown", "rst", "adoc", "org", "tex"),
        *("py", "pyi", "c", "h", "cc", "cpp", "hpp", "rs", "go", "java", "kt", "scala", "cs", "swift"),
        *("js", "ts", "rb", "php", "pl", "lua", "jl", "r", "sh", "sql"),
        *("jsonl", "ndjson", "jsonl.zst", "ndjson.zst"),
    )
)
"""What is read of a folder where no glob is given: prose, source code, and JSON lines. Not `*.json`: most are
settings."""


@dataclass(frozen=True, slots=True)
class InputFile:
    path: str
    label: str
    """How messages and provenance name it: the argument's last part and the path below it, the same on every
    machine."""
    kind: Kind
    bytes: int
    argument: int
    """Which of the arguments it came from."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments and their files. Raises InputError from `scan`, nothing later."""

    names: tuple[str, ...]
    """A label for each argument."""
    folders: tuple[bool, ...]
    """Whether each argument is a folder."""
    files: tuple[InputFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which files of a folder are read.

    A glob is matched with the file's name, or, where it holds a slash, with the path below the folder, in
    which `*` goes over slashes too. Hidden files and folders are never read, and links are not followed.
    """

    globs: tuple[str, ...] = TEXT_GLOBS
    exclude: tuple[str, ...] = ()

    def takes(self, name: str, below: str) -> bool:
        return _matches(name, below, self.globs) and not _matches(name, below, self.exclude)

    def enters(self, name: str, below: str) -> bool:
        """Whether a folder can hold anything that is taken."""
        return not _matches(name, below, self.exclude) and not _matches(name, f"{below}/", self.exclude)


def scan(arguments: Sequence[Path], choice: Choice | None = None, *, output: Path | None = None) -> Inputs:
    """Find every file: arguments in their order, folders walked in sorted order.

    `output`, the folder that the corpus goes to, is not walked. Raises InputError, naming the argument.
    """
    choice = choice or Choice()
    files: list[InputFile] = []
    for index, argument in enumerate(arguments):
        found = len(files)
        files += _files(index, argument, choice, None if output is None else os.path.realpath(output))
        if len(files) == found:
            raise InputError(
                f"{argument}: holds no text: no file below it matches {_listed(choice.globs)}; "
                "name the files wanted with --glob"
            )
    return Inputs(
        names=tuple(_label(argument) for argument in arguments),
        folders=tuple(argument.is_dir() for argument in arguments),
        files=tuple(files),
    )


def _files(index: int, argument: Path, choice: Choice, output: str | None) -> Iterator[InputFile]:
    try:
        if argument.is_dir():
            root = _label(argument)
            for entry, below in _walk(str(argument), "", choice, output):
                size = entry.stat(follow_symlinks=False).st_size
                yield InputFile(entry.path, f"{root}/{_printable(below)}", _kind(entry.name), size, index)
            return
        size = argument.stat().st_size
    except FileNotFoundError as error:
        raise InputError(f"{error.filename}: no such file or folder") from error
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error
    if not argument.is_file():
        raise InputError(f"{argument}: neither a file nor a folder")
    yield InputFile(str(argument), _label(argument), _kind(argument.name), size, index)


def _walk(
    folder: str, below: str, choice: Choice, output: str | None
) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Files that are taken, each with its path below the argument, in the order of their names' bytes."""
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in ordered:
        path = f"{below}{entry.name}"
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if choice.enters(entry.name, path) and (output is None or os.path.realpath(entry.path) != output):
                yield from _walk(entry.path, f"{path}/", choice, output)
        elif entry.is_file(follow_symlinks=False) and choice.takes(entry.name, path):
            yield entry, path


def _matches(name: str, below: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(below if "/" in glob else name, glob) for glob in globs)


def _kind(name: str) -> Kind:
    lower = name.lower()
    if lower.endswith(_LINES):
        return "lines"
    if lower.endswith(tuple(f"{suffix}.zst" for suffix in _LINES)):
        return "lines.zst"
    if lower.endswith(_NOT_TEXT):
        raise InputError(
            f"{_printable(name)}: this kind of file is not read; give JSON lines "
            f"({', '.join(_LINES)}, each also with .zst) or plain text"
        )
    return "text"


def _label(argument: Path) -> str:
    return _printable(argument.name or argument.resolve().name or "/")


def _printable(name: str) -> str:
    # A file's name need not be UTF-8, but corpus.json is.
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _listed(globs: Sequence[str]) -> str:
    shown = " ".join(globs[:8])
    return shown if len(globs) <= 8 else f"{shown} … ({len(globs)} globs)"
