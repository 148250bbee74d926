"""`python -m trainer run.toml [--optim.lr 3e-4 …] [--resume latest|N|none]`"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import ValidationError

from trainer.config import RunConfig, load, refusal
from trainer.console import RunConsole
from trainer.entry import guarded
from trainer.ranks import launched
from trainer.resume import Resume
from trainer.run import run


@dataclass(frozen=True)
class Arguments:
    """Train a model: begin a run, or go on with it from its latest version."""

    file: tyro.conf.Positional[Path]
    """The run's configuration, TOML; every key of it can be overridden, as --section.key VALUE."""
    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    resume: str = "latest"
    """latest: the newest version, or a new run where there is none. N: version N. none: the beginning."""
    allow_change: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A key (section.key) that may differ from the version's, although the run is then another. Repeatable."""
    allow_older: bool = False
    """Go on from the newest version that verifies, where the newest one is damaged."""


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    # The file comes first and is read before the rest is parsed: its values are the defaults of the overrides.
    defaults = load(Path(args[0])) if args and not args[0].startswith("-") else tyro.MISSING
    default = Arguments(file=tyro.MISSING, config=defaults)
    try:
        arguments = tyro.cli(Arguments, args=args, default=default, prog="python -m trainer")
    except ValidationError as error:
        raise refusal(error, "command line") from error
    resume = Resume.parse(arguments.resume, arguments.allow_change, arguments.allow_older)
    with launched(os.environ, arguments.config.run.device) as ranks:
        run(arguments.config, resume, RunConsole(), ranks)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
