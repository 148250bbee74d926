"""Which files the arguments stand for, in the order in which they are read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic, iglob
from itertools import takewhile
from pathlib import Path

from stages.errors import InputError, StorageError, StorageMissing, StorageUnavailable
from stages.inputs.datasets import data_names
from stages.inputs.inflate import Coding
from stages.inputs.suffixes import READ, TEXT_GLOBS, Kind, kind_of
from stages.storage import Location, Storages, locate


@dataclass(frozen=True, slots=True)
class InputFile:
    path: str
    """On disk, or a URI."""
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


def scan(
    arguments: Sequence[Path | str],
    choice: Choice | None = None,
    *,
    output: Path | None = None,
    storages: Storages | None = None,
) -> Inputs:
    """Find every file: arguments in their order, folders walked in sorted order.

    An argument is a file, a folder, or, where there is nothing of that name, a pattern with `*`, `**`, `?` or `[`; on
    disk, or as a URI such as `s3://bucket/folder`. Of a folder that Hugging Face `datasets` saved, the data files are
    taken, in its order. `output`, the folder that the corpus goes to, is not walked. Where there are URIs, it runs an
    event loop of its own. Raises InputError, naming the argument, and StorageUnavailable.
    """
    choice = choice or Choice()
    storages = storages or Storages()
    files: list[InputFile] = []
    names: list[str] = []
    folders: list[bool] = []
    for index, argument in enumerate(arguments):
        location = _located(str(argument))
        found = (
            _on_disk(index, Path(argument), choice, output)
            if location is None
            else asyncio.run(_in_store(index, location, choice, storages))
        )
        if not found.files:
            raise InputError(
                f"{argument}: matches no file; is it quoted, and relative to the folder at hand?"
                if found.is_pattern
                else f"{argument}: holds no text: no file below it matches {_listed(choice.globs)}; "
                "name the files wanted with --glob"
            )
        files += found.files
        names.append(found.name)
        folders.append(found.is_folder or found.is_pattern)
    return Inputs(names=tuple(names), folders=tuple(folders), files=tuple(files))


@dataclass(frozen=True, slots=True)
class _Found:
    """What one argument stands for."""

    name: str
    files: list[InputFile]
    is_folder: bool
    is_pattern: bool


def _on_disk(index: int, argument: Path, choice: Choice, output: Path | None) -> _Found:
    if has_magic(str(argument)) and not os.path.lexists(argument):  # a file of just that name comes first
        root, pattern = _split(argument)
        name = f"{_label(root)}/{_printable(pattern)}"
        return _Found(name, [*_matching(index, root, pattern, choice)], False, True)
    files = [*_files(index, argument, choice, None if output is None else os.path.realpath(output))]
    return _Found(_label(argument), files, argument.is_dir(), False)


def _located(argument: str) -> Location | None:
    try:
        return locate(argument)
    except StorageError as error:
        raise InputError(str(error)) from error


async def _in_store(index: int, location: Location, choice: Choice, storages: Storages) -> _Found:
    """As on disk, by the paths of objects. Raises InputError, StorageUnavailable."""
    root, path = location.root, location.path
    fixed = [*takewhile(lambda part: not has_magic(part), path.split("/"))]
    folder = "/".join(fixed)
    is_pattern = folder != path
    label = fixed[-1] if fixed and fixed[-1] else root.rpartition("/")[2]
    try:
        storage = storages.at(root)
        try:
            size = None if is_pattern or not path else await storage.size(path)
        except StorageMissing:
            size = None
        if size is not None:
            return _Found(label, [_file(location.uri, label, size, index)], False, False)
        entries = await storage.list(folder)
    except StorageUnavailable:
        raise
    except StorageError as error:
        raise InputError(str(error)) from error
    if not entries:
        raise InputError(f"{location.uri}: no such object or folder")
    files: list[InputFile] = []
    for entry in entries:
        below = entry.path.removeprefix(f"{folder}/")
        if any(part.startswith(".") for part in below.split("/")):
            continue
        if is_pattern:
            taken = matches(below, path.removeprefix(f"{folder}/")) and not _matches(
                below.rpartition("/")[2], below, choice.exclude
            )
        else:
            _refuse_saved(location, below)
            taken = _is_below(below, choice)
        if taken:
            files.append(_file(f"{root}/{entry.path}", f"{label}/{_printable(below)}", entry.bytes, index))
    name = f"{label}/{_printable(path.removeprefix(f'{folder}/'))}" if is_pattern else label
    return _Found(name, files, not is_pattern, is_pattern)


def matches(path: str, pattern: str) -> bool:
    """Whether a path is one that the pattern means, part by part; `**` is any number of folders."""
    return _parts_match(path.split("/"), pattern.split("/"))


def _parts_match(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_parts_match(parts[at:], patterns[1:]) for at in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _parts_match(parts[1:], patterns[1:])


def _is_below(below: str, choice: Choice) -> bool:
    """Whether a walk would come to an object and take it."""
    *above, name = below.split("/")
    folders = (("/".join(above[: at + 1]), part) for at, part in enumerate(above))
    return all(choice.enters(part, path) for path, part in folders) and choice.takes(name, below)


def _refuse_saved(location: Location, below: str) -> None:
    """Which of its files are the data, a saved data set says in a file: that is read on disk alone."""
    if below.rpartition("/")[2] in ("state.json", "dataset_dict.json"):
        raise InputError(
            f"{location.uri}: holds a saved data set ({below}); name its data with a pattern, such as "
            f"{location.uri}/data-*.arrow"
        )


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


def _split(argument: Path) -> tuple[Path, str]:
    """The folder that a pattern begins in, and the pattern below it."""
    parts = argument.parts
    fixed = next(at for at, part in enumerate(parts) if has_magic(part))
    return Path(*parts[:fixed]), str(Path(*parts[fixed:]))


def _matching(index: int, root: Path, pattern: str, choice: Choice) -> Iterator[InputFile]:
    """Files that match a pattern, sorted as a walk would find them; what is hidden matches only a dot."""
    found = iglob(pattern, root_dir=root, recursive=True)  # noqa: PTH207 - a Path's takes what is hidden
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
