"""The console of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rich.console import Console


class RunConsole(Console):
    """A console whose reader may go away: training then goes on, silently. (rich would end the process.)"""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # What is still buffered is flushed at exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def shown(path: Path) -> Path:
    """A path as a reader here would write it: relative where it lies below the current folder."""
    return path.relative_to(here) if path.is_relative_to(here := Path.cwd()) else path
