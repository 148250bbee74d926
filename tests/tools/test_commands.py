"""The installed commands: `headrace COMMAND` and `restore`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.__main__ import COMMANDS

QUICK = ("pack", "corpus", "tokenizer", "versions")
"""Commands that do not import torch."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def installed(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def test_headrace_lists_its_commands() -> None:
    done = run(installed("headrace"))
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_an_unknown_command_is_refused() -> None:
    done = run(installed("headrace"), "pakc")
    assert done.returncode == 2
    assert "no command 'pakc'; commands: pack" in done.stderr


@pytest.mark.parametrize("command", [*(("headrace", name) for name in QUICK), ("restore",)])
def test_each_command_explains_itself(command: tuple[str, ...]) -> None:
    done = run(installed(command[0]), *command[1:], "--help")
    assert done.returncode == 0
    assert "usage:" in done.stdout


def test_a_command_gets_its_arguments_and_gives_its_exit_code(tmp_path: Path) -> None:
    done = run(installed("headrace"), "versions", "list", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "none" in done.stderr
    assert "Traceback" not in done.stderr
