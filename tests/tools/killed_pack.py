"""A driver for the kill test: packs in forked children, each killed at its own call into the operating system.

Forked from one process that has imported everything and encoded nothing, so that a kill costs milliseconds. Prints one
line of JSON: how many calls there were, and what was wrong after any kill.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from stages.corpus import open_corpus
from stages.errors import CorpusNotFound
from tools.pack import main as pack_main
from trainer.entry import guarded

CALLS = ("write", "fsync", "replace", "unlink", "mkdir")
"""Of `os`: every way in which a pack changes the disk, but for the opening of files that are then written."""


def kill_at(call: int) -> None:
    """Kill this process at its `call`-th call, counted from 0, before it is carried out."""
    left = call

    def wrap(real: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return wrapped

    for name in CALLS:
        setattr(os, name, wrap(getattr(os, name)))


def in_a_child(arguments: list[str], call: int | None) -> int:
    """The exit code of a pack, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        sys.stdout = io.StringIO()
        if call is not None:
            kill_at(call)
        os._exit(guarded(lambda: pack_main(arguments)))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def main(text: str, tokenizer: str, work: str) -> None:
    expected_folder, out = Path(work) / "expected", Path(work) / "out"
    options = ["--tokenizer", tokenizer, "--workers", "1", "--on-bad", "quarantine"]
    assert in_a_child([text, "--out", str(expected_folder), *options], None) == 0
    expected = file_bytes(expected_folder)
    wrong: list[str] = []
    committed = 0
    call = 0
    while in_a_child([text, "--out", str(out), *options], call) == -signal.SIGKILL:
        try:
            with open_corpus(out) as corpus:
                corpus.verify()
            committed += 1
        except CorpusNotFound:
            pass
        code = in_a_child([text, "--out", str(out), *options], None)
        if code != 0 or file_bytes(out) != expected:
            wrong.append(f"after a kill at call {call}: exit code {code}, files {sorted(file_bytes(out))}")
        for path in out.iterdir():
            path.unlink()
        if call % 2:
            out.rmdir()
        call += 1
    if file_bytes(out) != expected:
        wrong.append("without a kill")
    print(json.dumps({"calls": call, "committed": committed, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
