"""Which files the arguments stand for, in the order in which they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic, iglob
from pathlib import Path

from stages.errors import InputError
from stages.inputs.datasets import data_names
from stages.inputs.inflate import Coding
from stages.inputs.suffixes import READ, TEXT_GLOBS, Kind, kind_of


@dataclass(frozen=True, slots=True)
class InputFile:
    path: str
    label: str
    """How messages and provenance name it: the argument's last part and the path below it, the same on every
    machine."""
    kind: Kind
    coding: Coding
    """How all of its bytes are compressed."""
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

    An argument is a file, a folder, or, where there is nothing of that name, a pattern with `*`, `**`, `?` or `[`. Of a
    folder that Hugging Face `datasets` saved, the data files are taken, in its order. `output`, the folder that the
    corpus goes to, is not walked. Raises InputError, naming the argument.
    """
    choice = choice or Choice()
    files: list[InputFile] = []
    folders: list[bool] = []
    for index, argument in enumerate(arguments):
        found = len(files)
        pattern = is_pattern(argument)
        if pattern:
            files += _matching(index, argument, choice)
        else:
            files += _files(index, argument, choice, None if output is None else os.path.realpath(output))
        if len(files) == found:
            raise InputError(
                f"{argument}: matches no file; is it quoted, and relative to the folder at hand?"
                if pattern
                else f"{argument}: holds no text: no file below it matches {_listed(choice.globs)}; "
                "name the files wanted with --glob"
            )
        folders.append(pattern or argument.is_dir())
    names = (_printable(str(a)) if is_pattern(a) else _label(a) for a in arguments)
    return Inputs(names=tuple(names), folders=tuple(folders), files=tuple(files))


def is_pattern(argument: Path) -> bool:
    """Whether an argument stands for the files that match it: a file of just that name comes first."""
    return has_magic(str(argument)) and not os.path.lexists(argument)


def _files(index: int, argument: Path, choice: Choice, output: str | None) -> Iterator[InputFile]:
    try:
        if argument.is_dir():
            root = _label(argument)
            for entry, below in _walk(str(argument), "", choice, output, root):
                size = entry.stat(follow_symlinks=False).st_size
                yield _file(entry.path, f"{root}/{_printable(below)}", size, index)
            return
        size = argument.stat().st_size
    except FileNotFoundError as error:
        raise InputError(f"{error.filename}: no such file or folder") from error
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error
    if not argument.is_file():
        raise InputError(f"{argument}: neither a file nor a folder")
    yield _file(str(argument), _label(argument), size, index)


def _matching(index: int, argument: Path, choice: Choice) -> Iterator[InputFile]:
    """Files that match a pattern, sorted as a walk would find them; what is hidden matches only a dot."""
    parts = argument.parts
    fixed = next(at for at, part in enumerate(parts) if has_magic(part))
    root = Path(*parts[:fixed])
    found = iglob(  # noqa: PTH207 - a Path's takes what is hidden
        str(Path(*parts[fixed:])), root_dir=root, recursive=True
    )
    for below in sorted(found, key=lambda path: os.fsencode(path).split(b"/")):
        path = root / below
        if not path.is_file() or _matches(path.name, below, choice.exclude):
            continue
        try:
            size = path.stat().st_size
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error
        yield _file(str(path), f"{_label(root)}/{_printable(below)}", size, index)


def _file(path: str, label: str, size: int, argument: int) -> InputFile:
    found = kind_of(Path(path).name)
    if found is None:
        raise InputError(f"{_printable(path)}: this kind of file is not read; give {READ}")
    kind, coding = found
    return InputFile(path, label, kind, coding, size, argument)


def _walk(
    folder: str, below: str, choice: Choice, output: str | None, label: str
) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Files that are taken, each with its path below the argument, in the order of their names' bytes."""
    with os.scandir(folder) as entries:
        found = {entry.name: entry for entry in entries}
    saved = data_names(Path(folder), found, label)
    for name in sorted(found, key=os.fsencode) if saved is None else saved:
        entry = found[name]
        path = f"{below}{entry.name}"
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if choice.enters(entry.name, path) and (output is None or os.path.realpath(entry.path) != output):
                yield from _walk(entry.path, f"{path}/", choice, output, f"{label}/{_printable(entry.name)}")
        elif entry.is_file(follow_symlinks=False) and choice.takes(entry.name, path):
            yield entry, path


def _matches(name: str, below: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(below if "/" in glob else name, glob) for glob in globs)


def _label(argument: Path) -> str:
    return _printable(argument.name or argument.resolve().name or "/")


def _printable(name: str) -> str:
    # A file's name need not be UTF-8, but corpus.json is.
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _listed(globs: Sequence[str]) -> str:
    shown = " ".join(globs[:8])
    return shown if len(globs) <= 8 else f"{shown} … ({len(globs)} globs)"
