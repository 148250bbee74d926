"""A driver for the kill tests: packs in forked children that are killed, each then run again to its end.

Forked from one process that has imported everything and encoded nothing, so that a kill costs milliseconds. A pack
saves after every group here, and groups are small. Prints one line of JSON: what was wrong after any kill, and how
often a pack went on in place of starting over.

    python -m tests.tools.killed_pack calls WORK STEP ARGUMENT…      killed at each STEP-th call into the system
    python -m tests.tools.killed_pack moments WORK COUNT ARGUMENT…   killed COUNT times, at random moments

Where the arguments begin with `to FOLDER`, packs append to a copy of the corpus that lies there.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lmdb

import tools.pack
from stages.corpus import open_corpus
from stages.corpus.pack import PackSpec
from stages.errors import CorpusNotFound
from stages.inputs import ReadSpec
from stages.tokenise import TextTokenizer
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


def fork(arguments: list[str], call: int | None, encoded: Path) -> int:
    """A pack in a child; its pid. `encoded`: gets the number of texts that it has encoded."""
    pid = os.fork()
    if pid == 0:
        sys.stdout = sys.stderr = io.StringIO()
        texts = 0
        real = TextTokenizer.encode

        def counted(self: TextTokenizer, some: tuple[str, ...]) -> object:
            nonlocal texts
            texts += len(some)
            return real(self, some)

        TextTokenizer.encode = counted  # type: ignore[method-assign,assignment]  # counts and hands on
        if call is not None:
            kill_at(call)
        code = guarded(lambda: tools.pack.main(arguments))
        encoded.write_text(str(texts), "utf-8")
        os._exit(code)
    return pid


def ended(pid: int) -> int:
    """The exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def content(folder: Path) -> dict[str, object]:
    """Every file's bytes; of an lmdb file, whose bytes are nobody's promise, its documents."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".lmdb":
            with lmdb.open(str(path), subdir=False, readonly=True, max_dbs=2, lock=False) as env:
                database = env.open_db(b"documents", create=False)
                with env.begin(db=database) as transaction:
                    found[str(path.relative_to(folder))] = [
                        (bytes(k), bytes(v)) for k, v in transaction.cursor()
                    ]
        elif path.is_file() and not path.name.endswith("-lock"):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


class Driver:
    def __init__(self, work: Path, options: list[str]) -> None:
        self.out, self.encoded = work / "out", work / "encoded"
        self.base: str | None = None
        if options[0] == "to":
            self.base, options = options[1], [*options[2:], "--append"]
            shutil.copytree(self.base, work / "expected")
        self.options = options
        began = time.monotonic()
        if code := ended(fork([*options, "--out", str(work / "expected")], None, self.encoded)):
            raise SystemExit(f"the pack that nothing kills ends with {code}")
        self.whole_s = time.monotonic() - began
        self.expected, self.texts = content(work / "expected"), self.count()
        self.seen: dict[str, object] = {"wrong": [], "kills": 0, "committed": 0, "went_on": 0}

    def count(self) -> int:
        return int(self.encoded.read_text("utf-8"))

    def start(self, call: int | None = None) -> int:
        if self.base is not None and not (self.out / "corpus.json").exists():
            shutil.copytree(self.base, self.out, dirs_exist_ok=True)
        return fork([*self.options, "--out", str(self.out)], call, self.encoded)

    def add(self, name: str) -> None:
        self.seen[name] = int(str(self.seen[name])) + 1

    def look(self) -> None:
        """After a kill: there is a whole corpus, or none."""
        self.add("kills")
        try:
            with open_corpus(self.out) as corpus:
                corpus.verify()
            self.add("committed")
        except CorpusNotFound:
            pass

    def run_again(self, when: str) -> None:
        code = ended(self.start())
        if code or content(self.out) != self.expected:
            self.wrong(f"after a kill {when}: exit code {code}, files {sorted(content(self.out))}")
        elif self.count() < self.texts:
            self.add("went_on")

    def wrong(self, what: str) -> None:
        wrong = self.seen["wrong"]
        if isinstance(wrong, list):
            wrong.append(what)


def calls(work: str, step: str, *options: str) -> None:
    """Each kill is followed by a run to the end."""
    driver = Driver(Path(work), list(options))
    call = 0
    while ended(driver.start(call)) == -signal.SIGKILL:
        driver.look()
        driver.run_again(f"at call {call}")
        remove(driver.out)
        if call % 2:
            driver.out.mkdir()
        call += int(step)
    if content(driver.out) != driver.expected:
        driver.wrong("without a kill")
    print(json.dumps(driver.seen))


def moments(work: str, count: str, *options: str) -> None:
    """A pack is killed again and again, until one comes to its end before it is killed."""
    driver = Driver(Path(work), list(options))
    draw = random.Random(0)
    while int(str(driver.seen["kills"])) < int(count):
        pid = driver.start()
        time.sleep(draw.uniform(0, 1.1 * driver.whole_s))
        os.kill(pid, signal.SIGKILL)
        if ended(pid) == -signal.SIGKILL:
            driver.look()
            if draw.random() < 0.5:
                continue
            driver.run_again("at some moment")
        elif content(driver.out) != driver.expected:
            driver.wrong(f"at its end: files {sorted(content(driver.out))}")
        remove(driver.out)
    if driver.out.exists():
        driver.run_again("at the last moment")
    print(json.dumps(driver.seen))


if __name__ == "__main__":
    tools.pack.PackSpec = partial(PackSpec, save_every_s=0.0)  # type: ignore[misc,assignment]  # the point
    small = 15 if sys.argv[1] == "calls" else 100
    tools.pack.ReadSpec = partial(ReadSpec, group_records=small)  # type: ignore[misc,assignment]  # the point
    {"calls": calls, "moments": moments}[sys.argv[1]](*sys.argv[2:])
