"""`python -m tools.restore RUN --version N [--to DIR]`: go back to an earlier version, or export one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.filesize import decimal

from checkpoint import Store
from checkpoint.disk import Disk
from checkpoint.errors import naming
from checkpoint.loading import load_part
from tools.versions import open_store
from trainer.entry import DONE, MISTAKE, guarded

if TYPE_CHECKING:
    from checkpoint.loading import PartTensors


@dataclass(frozen=True)
class Arguments:
    """Verify a version whole, then make it the head of its run: a new version that refers to its content. Later
    versions stay. With --to, write its tensors as safetensors instead and change nothing.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder, or its versions/."""
    version: int
    """The version's number; `python -m tools.versions list RUN` shows them."""
    to: Path | None = None
    """A new or empty folder: write PART.safetensors there for each part."""
    part: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """With --to, which parts to write; may be repeated. By default the model."""


class OutputTaken(Exception):
    exit_code = MISTAKE


class NotExportable(Exception):
    exit_code = MISTAKE


def main(argv: Sequence[str] | None = None) -> int:
    arguments = tyro.cli(Arguments, args=argv, prog="python -m tools.restore")
    store = open_store(arguments.run)
    if arguments.to is not None:
        export(store, arguments.version, arguments.part or ("model",), arguments.to)
    else:
        roll_back(store, arguments.version, arguments.run)
    return DONE


def roll_back(store: Store, version: int, run: Path) -> None:
    """Make a version the head, and say so."""
    before = store.latest()
    info = store.restore_as_head(version)
    print(f"verified version {version}: step {info.step}, {decimal(info.total_bytes)}, every byte as written")
    print(f"version {info.version} is now the head of {run}: the content of version {version}")
    if before is not None and before > version:
        print(f"versions {version + 1} to {before} are kept; restore one of them to go back to it")
    config = run / "config.toml"
    if config.exists():
        print(f"go on from it: python -m trainer {config}")


def export(store: Store, version: int, parts: Sequence[str], to: Path) -> None:
    """Write each part's tensors to a file of its own; tied ones once, their other names in the file's metadata.

    Raises:
        OutputTaken: the folder is not empty.
        NotExportable: safetensors does not know an element type.
        NoVersion, StoreDamaged, WrongState: there is nothing whole to write.
    """
    disk = Disk()
    with naming("creating the folder", to):
        for folder in reversed([to, *to.parents]):
            if not disk.is_real_dir(folder):
                disk.make_dir(folder)
        if disk.names(to):
            raise OutputTaken(f"{to} is not empty: choose a new folder for --to")
    for part in parts:
        loaded = load_part(store, version, part)
        path = to / f"{part}.safetensors"
        _write(loaded, path)
        print(f"{path}: {len(loaded.tensors)} tensors of version {version}, verified")


def _write(loaded: PartTensors, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    waiting = path.with_name(path.name + ".tmp")
    try:
        with naming("writing", path):
            save_file(dict(loaded.tensors), waiting, metadata={"format": "pt", **loaded.tied})
            waiting.rename(path)
    except (KeyError, ValueError, SafetensorError) as error:
        waiting.unlink(missing_ok=True)
        raise NotExportable(f"{path}: safetensors refused to write it: {error}") from error


if __name__ == "__main__":
    raise SystemExit(guarded(main))
