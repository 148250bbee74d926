"""`python -m tools.versions list|show N|verify [N|--all] RUN`: what versions a run has, and whether they are whole."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from checkpoint import JSON, NoStore, NoVersion, Store, StoreDamaged, VersionInfo
from trainer.entry import DONE, FAILED, MISTAKE, guarded


@dataclass(frozen=True)
class List:
    """Every version: step, age, loss, bytes. New bytes are the sizes of the packs written for it, indices included."""

    run: tyro.conf.Positional[Path]
    """The run's folder, or its versions/."""


@dataclass(frozen=True)
class Show:
    """One version: its parts, tensors and plain data."""

    version: tyro.conf.Positional[int]
    """Its number."""
    run: tyro.conf.Positional[Path]
    """The run's folder, or its versions/."""


@dataclass(frozen=True)
class Verify:
    """Read every byte of versions and compare it with its digest. Without N or --all: of the latest."""

    words: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="[N] RUN")]]
    """A version's number, if one is meant, and the run's folder, or its versions/."""
    all: tyro.conf.FlagCreatePairsOff[bool] = False
    """Verify every version; what versions share is read once."""


Command = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
)


class WrongArguments(Exception):
    exit_code = MISTAKE


def main(argv: Sequence[str] | None = None) -> int:
    command: List | Show | Verify = tyro.cli(Command, args=argv, prog="python -m tools.versions")
    console = Console(soft_wrap=True, highlight=False)
    match command:
        case List(run):
            return show_list(open_store(run), console)
        case Show(version, run):
            return show_version(open_store(run), version, console)
        case Verify(words, every):
            one, run = _verify_words(words, every)
            return verify(open_store(run), one, every, console)


def open_store(run: Path) -> Store:
    """The store of a run's folder, or the store itself. Raises NoStore; NoVersion if it has none yet."""
    if not run.exists():
        raise NoStore(f"{run}: no such run: there is no such folder")
    inside = run / "versions"
    store = Store(inside if (inside / "FORMAT").exists() else run)
    if not store.versions():
        raise NoVersion(f"{run} has no versions yet")
    return store


def show_list(store: Store, console: Console) -> int:
    """Print a line a version, from headers alone; a header that is damaged is shown, and is a failure."""
    now = time.time()
    code = DONE
    rows: list[Sequence[str]] = []
    for version in store.versions():
        try:
            rows.append(_row(store.info(version), now))
        except StoreDamaged as error:
            rows.append([str(version), *[""] * 5, f"damaged: {error.found}"])
            code = FAILED
    _print_table(console, ("version", "step", "age", "loss", "new bytes", "total bytes", "parent"), rows)
    return code


def _row(info: VersionInfo, now: float) -> Sequence[str]:
    loss = info.summary.get("loss")
    parent = "" if info.parent is None else str(info.parent)
    return [
        str(info.version),
        str(info.step),
        age(now - info.time),
        f"{loss:.4f}" if isinstance(loss, float) else "",
        decimal(info.new_bytes),
        decimal(info.total_bytes),
        parent if info.restored_from is None else f"{parent} (restored)",
    ]


def age(seconds: float) -> str:
    """A time span in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def show_version(store: Store, version: int, console: Console) -> int:
    """Print what a version holds."""
    info, manifest = store.read(version)
    for name, value in (
        ("version", version),
        ("step", info.step),
        ("parent", info.parent),
        ("restored from", info.restored_from),
        ("age", age(time.time() - info.time)),
        ("new bytes", decimal(info.new_bytes)),
        ("total bytes", decimal(info.total_bytes)),
        ("blocked", f"{info.blocked_s:.3f} s"),
        ("written in", f"{info.written_s:.3f} s"),
        ("packs", len(manifest.packs)),
    ):
        if value is not None:
            console.print(f"{name:<14}{value}", markup=False)
    _print_plain(console, "summary", info.summary)
    for part in manifest.tree:
        rows = [
            (
                name.removeprefix(f"{part}/"),
                str(tensor.spec),
                decimal(tensor.spec.nbytes),
                str(store.chunks_of(tensor)),
                " ".join(root.hex()[:16] for root in tensor.roots),
            )
            for name, index in manifest.leaves(part).items()
            for tensor in [manifest.tensors[index]]
        ]
        console.print(f"\npart {part}", markup=False)
        if rows:
            _print_table(console, ("tensor", "type and shape", "bytes", "chunks", "root"), rows, left=2)
        _print_plain(console, "plain", manifest.plain(part))
    return DONE


def verify(store: Store, version: int | None, every: bool, console: Console) -> int:
    """Print a line a version that is whole; the error of each that is not."""
    latest = store.versions()[-1]
    versions = store.versions() if every else [latest if version is None else version]
    checked: set[bytes] = set()
    code = DONE
    for number in versions:
        try:
            info = store.verify(number, checked)
        except StoreDamaged as error:
            console.print(f"version {number}: DAMAGED: {error}", markup=False)
            code = FAILED
        else:
            console.print(
                f"version {number}: whole, step {info.step}, {decimal(info.total_bytes)}", markup=False
            )
    return code


def _verify_words(words: Sequence[str], every: bool) -> tuple[int | None, Path]:
    match words:
        case [run]:
            return None, Path(run)
        case [version, run] if version.isdigit() and not every:
            return int(version), Path(run)
        case [run, version] if version.isdigit() and not every:
            return int(version), Path(run)
    raise WrongArguments(
        "verify takes a run and at most one of a version's number and --all: verify [N|--all] RUN"
    )


def _print_plain(console: Console, title: str, plain: JSON) -> None:
    if isinstance(plain, Mapping) and not plain:
        return
    console.print(f"{title:<14}{json.dumps(plain, indent=2)}", markup=False)


def _print_table(
    console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 0
) -> None:
    """A table on a terminal, aligned plain lines elsewhere. The first `left` columns are flush left."""
    if console.is_terminal:
        table = Table()
        for index, title in enumerate(titles):
            table.add_column(title, justify="left" if index < left else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table, soft_wrap=False)
        return
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        console.print("  ".join(cells).rstrip(), markup=False)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
