"""The rules of a resume: which version, and what may have changed since."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline import JSON
from trainer.config import RunConfig, every_key, keys
from trainer.errors import ChangedConfig, ConfigError
from trainer.loop import Progress

LASTING = ("model.", "data.seq_len", "data.packing", "run.seed")
"""Keys that a run keeps for good: the tensors of a version, or the samples consumed, would not fit another value."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where to begin: "latest" (a new run where there is no version yet), "none", or a version's number."""

    version: int | None
    fresh: bool
    allow_change: Sequence[str] = ()
    allow_older: bool = False

    def __post_init__(self) -> None:
        # A key that has not changed is accepted: the command that allowed a change must go on after a kill, too.
        known = list(every_key())
        for key in self.allow_change:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                raise ConfigError(
                    f"--allow-change {key}: no such key" + (f"; did you mean {close[0]!r}?" if close else "")
                )

    @classmethod
    def parse(cls, text: str, allow_change: Sequence[str] = (), allow_older: bool = False) -> Resume:
        if text in ("latest", "none"):
            return cls(None, text == "none", allow_change, allow_older)
        if text.isdecimal() and int(text) >= 1:
            return cls(int(text), False, allow_change, allow_older)
        raise ConfigError(f"--resume {text!r}: expected latest, none or a version's number (1, 2, …)")


@dataclass(frozen=True, slots=True)
class Change:
    """A key that differs between a version's configuration and this one."""

    key: str
    saved: JSON
    now: JSON
    exact: bool

    def __str__(self) -> str:
        return f"{self.key}: {self.saved!r} in the version, {self.now!r} now"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run goes on from: nothing (version None) or a version, and what has changed since."""

    version: int | None
    progress: Progress
    changed: Sequence[Change] = ()
    warnings: Sequence[str] = ()


BEGINNING = Origin(None, Progress(step=0, position=0, tokens=0, feed={}))


def changes(saved: Mapping[str, JSON], now: RunConfig) -> list[Change]:
    """Every key that differs, in the order of the configuration; a key that `saved` lacks counts as None."""
    found = []
    for key, value, exact in keys(now):
        section, _, name = key.partition(".")
        held = saved.get(section)
        before = held.get(name) if isinstance(held, dict) else None
        if before != value:
            found.append(Change(key, before, value, exact))
    return found


def refuse_inexact(found: Sequence[Change], allowed: Sequence[str]) -> None:
    """Raise ChangedConfig where a changed key would make the run other than the uninterrupted one, unless allowed."""
    refused = [change for change in found if change.exact and change.key not in allowed]
    if refused:
        flags = [f"--allow-change {change.key}" for change in refused if not change.key.startswith(LASTING)]
        raise ChangedConfig(
            "the configuration changed since the version; the resumed run would not be the run that was interrupted:\n"
            + "\n".join(f"  {change}" for change in refused)
            + "\nRestore the values, or begin another run in another run.dir"
            + (f"; or accept it with {' '.join(flags)}" if flags else "")
        )
