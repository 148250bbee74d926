"""Every command in the documents is run, and prints what the documents say that it prints, but for the numbers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "FORMATS.md", "CONTRIBUTING.md", "CHANGELOG.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    line: str
    prints: tuple[str, ...]


def blocks(document: str, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall((ROOT / document).read_text("utf-8")) if kind == language]


def commands(document: str) -> list[Command]:
    found: list[Command] = []
    for body in blocks(document, "console"):
        for command in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            line, *prints = command.splitlines()
            found.append(Command(line, tuple(prints)))
    return found


def without_numbers(line: str) -> str:
    """A line as a pattern: a word with a digit in it, an age with its unit, and a run of blanks are a sign each."""
    line = re.sub(r"\b\d+ (s|min|h|d)\b", "0", line)
    return " ".join("#" if any(c.isdigit() for c in word) else word for word in line.split())


def write_text(folder: Path) -> None:
    """The folder `text` of the README: real text, two of its files empty."""
    library = Path(sysconfig.get_path("stdlib"))
    for package in ("json", "email", "logging", "asyncio"):
        for file in sorted((library / package).glob("*.py")):
            target = folder / package / f"{file.stem}.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    for name in ("empty.txt", "blank.txt"):
        (folder / name).write_text("")


def run(line: str, where: Path) -> str:
    """Run a line as a shell with the project's environment activated would; its output must end well."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def is_slow(command: Command) -> bool:
    return command.line.startswith("python -m tools.bench ")


def test_the_readme_is_followed_word_for_word(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    (config,) = blocks("README.md", "toml")
    (tmp_path / "run.toml").write_text(config)
    for script in blocks("README.md", "python"):
        name = script.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(script)
    quick = [c for c in commands("README.md") if not c.line.startswith("make ") and not is_slow(c)]
    assert len(quick) >= 8
    for command in quick:
        printed = [without_numbers(line) for line in run(command.line, tmp_path).splitlines()]
        for line in (line for line in command.prints if line != "…"):
            assert without_numbers(line) in printed, f"`{command.line}` does not print {line!r} but {printed}"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in commands("README.md") if is_slow(c)], ids=lambda c: c.line)
def test_the_readmes_benches_run(command: Command, cache: Path) -> None:
    run(f"{command.line} --cache {cache}", cache)


def test_what_is_made_is_made_by_ci() -> None:
    """`make NAME` cannot be run from within itself: the targets exist, and .ci/run runs those of the documents."""
    made = {c.line for document in DOCUMENTS for c in commands(document) if c.line.startswith("make ")}
    assert {"make demo", "make test"} <= made
    ci, makefile = (ROOT / ".ci" / "run").read_text(), (ROOT / "Makefile").read_text()
    for line in made:
        assert re.search(rf"^{line.removeprefix('make ')}:", makefile, re.MULTILINE), line
        assert line in ci, line


def test_no_other_document_has_commands_that_nothing_runs() -> None:
    for document in DOCUMENTS[1:]:
        assert all(c.line.startswith("make ") for c in commands(document)), document


def test_every_example_configuration_is_one() -> None:
    from trainer.config import load

    examples = sorted((ROOT / "examples").glob("*.toml"))
    assert examples
    for example in examples:
        load(example)
