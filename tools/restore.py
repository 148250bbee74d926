"""`python -m tools.restore RUN --version N [--to DIR]`: go back to an earlier version, or export one."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w
import tyro
from rich.filesize import decimal

from checkpoint import JSON, Store
from checkpoint.disk import Disk
from checkpoint.errors import naming
from checkpoint.loading import load_part
from tools.versions import WrongArguments, open_store
from trainer.entry import DONE, MISTAKE, guarded

if TYPE_CHECKING:
    from checkpoint.loading import PartTensors


@dataclass(frozen=True)
class Arguments:
    """Verify a version whole, then make it the head of its run: a new version that refers to its content. Later
    versions stay; the run's config.toml becomes the version's. With --to, write its tensors as safetensors instead
    and change nothing.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder, or its versions/."""
    version: int
    """The version's number; `python -m tools.versions list RUN` shows them."""
    to: Path | None = None
    """A new or empty folder: write PART.safetensors there for each part."""
    part: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """With --to, which parts to write; may be repeated. By default the model."""


_NO_EXPORT = "Nothing was exported. "


class OutputTaken(Exception):
    exit_code = MISTAKE


class NotExportable(Exception):
    exit_code = MISTAKE


def main(argv: Sequence[str] | None = None) -> int:
    arguments = tyro.cli(Arguments, args=argv, prog="python -m tools.restore")
    if arguments.part and arguments.to is None:
        raise WrongArguments(
            "--part chooses what to export and needs --to DIR; a version becomes the head as a whole, so leave "
            "--part out for that"
        )
    store = open_store(arguments.run)
    if arguments.to is not None:
        export(store, arguments.version, arguments.part or ("model",), arguments.to)
    else:
        roll_back(store, arguments.version, arguments.run)
    return DONE


def roll_back(store: Store, version: int, run: Path) -> None:
    """Make a version the head, its configuration the run's, and say so."""
    before = store.latest()
    info = store.restore_as_head(version)
    print(f"verified version {version}: step {info.step}, {decimal(info.total_bytes)}, every byte as written")
    print(f"version {info.version} is now the head of {run}: the content of version {version}")
    if before is not None and before > version:
        print(f"versions {version + 1} to {before} are kept; restore one of them to go back to it")
    config = run / "config.toml"
    if store.path != run / "versions" or not config.exists():
        return
    # The file is of the run's last start: with what that one had changed, the version may be refused.
    sections = _sections(store, info.version)
    if sections is not None:
        _replace(config, _toml(sections, run))
        print(f"{config} is now the configuration of version {version}")
    print(f"go on from it: python -m trainer {config}")


def _sections(store: Store, version: int) -> Mapping[str, Mapping[str, JSON]] | None:
    """The configuration that a version holds, section by section; None if it holds none."""
    _, manifest = store.read(version)
    plain = manifest.plain("config") if "config" in manifest.tree else None
    if not isinstance(plain, Mapping) or not plain:
        return None
    sections = {name: section for name, section in plain.items() if isinstance(section, Mapping)}
    return sections if len(sections) == len(plain) else None


def _toml(sections: Mapping[str, Mapping[str, JSON]], run: Path) -> bytes:
    """A run's config.toml: the sections without what is None, which TOML does not have, for the run's folder."""
    written = {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in sections.items()
    }
    written.setdefault("run", {})["dir"] = str(run.absolute())
    return tomli_w.dumps(written).encode()


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    disk = Disk()
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    full = "The version is the run's head, its configuration is not written: restore it again. "
    with naming("writing the version's configuration", path, full):
        try:
            fd = disk.create(draft)
            try:
                disk.write(fd, [memoryview(data)])
                disk.fsync(fd)
            finally:
                disk.close(fd)
            disk.rename(draft, path)
            disk.fsync_dir(path.parent)
        finally:
            disk.unlink(draft)


def export(store: Store, version: int, parts: Sequence[str], to: Path) -> None:
    """Write each part's tensors to a file of its own; tied ones once, their other names in the file's metadata.

    The folder appears with all files in it, or not at all.

    Raises:
        OutputTaken: the folder is not empty.
        NotExportable: a part has no tensors, or safetensors does not know an element type.
        NoVersion, StoreDamaged, WrongState: there is nothing whole to write.
        StoreUnwritable, StoreFull, StoreFailed: the disk refuses.
    """
    disk = Disk()
    parts = tuple(dict.fromkeys(parts))
    _expect_tensors(store, version, parts)
    with naming("creating the folder", to, _NO_EXPORT):
        to = Path(os.path.realpath(to))
        if to.exists() and disk.names(to):
            raise OutputTaken(f"{to} is not empty: choose a new folder for --to")
        for folder in reversed(to.parents):
            if not disk.is_real_dir(folder):
                disk.make_dir(folder)
        draft = to.with_name(f"{to.name}.{secrets.token_hex(4)}.tmp")
        disk.make_dir(draft)
    try:
        counts = [
            _write(load_part(store, version, part), draft, to / f"{part}.safetensors") for part in parts
        ]
        with naming("naming the folder", to, _NO_EXPORT):
            disk.fsync_dir(draft)
            disk.rename(draft, to)
            disk.fsync_dir(to.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for part, count in zip(parts, counts, strict=True):
        print(f"{to / part}.safetensors: {count} tensors of version {version}, verified")


def _expect_tensors(store: Store, version: int, parts: Sequence[str]) -> None:
    """Raises WrongState or NotExportable unless each part is there and has tensors."""
    _, manifest = store.read(version)
    for part in parts:
        store.expect_part(version, manifest, part)
        if not manifest.leaves(part):
            having = [name for name in manifest.tree if manifest.leaves(name)]
            raise NotExportable(
                f"part {part} of version {version} has no tensors, only plain data, which `python -m tools.versions "
                f"show {version} RUN` prints; parts with tensors: {', '.join(having) or 'none'}"
            )


def _write(loaded: PartTensors, draft: Path, final: Path) -> int:
    """Write a part's file into the draft of the folder, durably; errors name its final path. The tensors' number."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path = draft / final.name
    try:
        with naming("writing", final, _NO_EXPORT):
            try:
                save_file(dict(loaded.tensors), path, metadata={"format": "pt", **loaded.tied})
            except SafetensorError as error:
                # It tells a failing disk from what it refuses only in its text, by the system's error number.
                if code := re.search(r"\(os error (\d+)\)", str(error)):
                    raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
                raise
            with path.open("rb") as file:
                os.fsync(file.fileno())
    except (KeyError, ValueError, SafetensorError) as error:
        raise NotExportable(f"{final}: safetensors refused to write it: {error}") from error
    return len(loaded.tensors)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
