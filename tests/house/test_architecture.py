"""The house rules: who imports whom, banned names, what must start without torch, what the docs promise of both."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipeline", "stages", "checkpoint", "trainer", "tools")
MAY_IMPORT = {
    "pipeline": set[str](),
    "checkpoint": set[str](),
    "stages": {"pipeline"},
    "trainer": {"stages", "pipeline", "checkpoint"},
    "tools": {"pipeline", "stages", "checkpoint", "trainer"},
}
BANNED = {"utils", "util", "common", "helpers", "helper", "misc", "base"}
HEAVY = ("torch", "transformers", "deepspeed")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_whom_they_may(package: str) -> None:
    siblings = set(PACKAGES) - MAY_IMPORT[package] - {package}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in sources(package)
        for module, line in imported(ast.parse(path.read_text("utf-8")))
        if module.split(".")[0] in siblings
    ]
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_the_rule_looks_at_something(package: str) -> None:
    assert len(sources(package)) > 3


def test_no_module_has_a_name_that_says_nothing() -> None:
    folders = [*PACKAGES, "tests", "examples"]
    wrong = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.stem.lower() in BANNED]
    assert not wrong


def test_every_package_says_what_flows_through_it() -> None:
    for package in PACKAGES:
        docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text("utf-8")))
        assert docstring
        assert "─►" in docstring, f"{package}/__init__.py draws no flow"


@pytest.mark.parametrize(
    "module",
    ["pipeline", "stages", "stages.feed", "stages.corpus", "tools.pack", "checkpoint", "tools.versions"],
)
def test_light_modules_start_without_heavy_ones(module: str) -> None:
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == ""


BETWEEN_OWN_PROCESSES = ("pipeline/processes/", "pipeline/process_map.py", "pipeline/plan.py")
"""Here values and functions are pickled on their way to worker processes that this one started, and back."""


def test_nothing_unpickles_what_was_stored() -> None:
    wrong = []
    for package in PACKAGES:
        for path in sources(package):
            if path.relative_to(ROOT).as_posix().startswith(BETWEEN_OWN_PROCESSES):
                continue
            tree = ast.parse(path.read_text("utf-8"))
            wrong += [
                f"{path}:{line} imports {m}"
                for m, line in imported(tree)
                if m.split(".")[0] in {"pickle", "marshal", "shelve"}
            ]
            wrong += [
                f"{path}:{node.lineno} calls torch.load"
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and node.attr == "load"
                and isinstance(node.value, ast.Name)
                and node.value.id == "torch"
            ]
    assert not wrong


def test_all_is_what_is_exported() -> None:
    """`__all__` of each package names what its `__init__` binds, and nothing else is public there."""
    for package in ("pipeline", "checkpoint"):
        tree = ast.parse((ROOT / package / "__init__.py").read_text("utf-8"))
        exported = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
        ]
        assert exported, f"{package} has no __all__"
        code = f"import {package} as p; print(*[n for n in p.__all__ if not hasattr(p, n)])"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
        )
        assert done.stdout.strip() == "", f"{package}.__all__ names what is not there"
