"""Real text that every machine has: sources and documents of Python and of the installed packages."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import zstandard

from stages.inputs.scan import Choice, scan
from stages.tokenise import TrainSpec, train
from tools import pack
from tools.bench.sides import Settings

BYTES = 48 << 20
VOCABULARY = TrainSpec(32768)
GLOBS = ("*.py", "*.md", "*.txt", "*.rst")


def documents(at_least_bytes: int) -> Iterator[str]:
    """Different texts until they sum to `at_least_bytes`, or to what there is. The same on the same installation."""
    seen: set[bytes] = set()
    total = 0
    for path in ("stdlib", "purelib"):
        for file in scan([Path(sysconfig.get_path(path))], Choice(GLOBS)).files:
            data = Path(file.path).read_bytes()
            digest = sha256(data).digest()
            if not data or digest in seen:
                continue
            seen.add(digest)
            try:
                yield data.decode("utf-8")
            except UnicodeDecodeError:
                continue
            total += len(data)
            if total >= at_least_bytes:
                return


def json_lines(cache: Path, at_least_bytes: int) -> Path:
    """The documents as .jsonl.zst, made once."""
    path = cache / f"text-{at_least_bytes >> 20}.jsonl.zst"
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}.draft")
        with draft.open("wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as lines:
            for text in documents(at_least_bytes):
                lines.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
        draft.replace(path)
    return path


def texts(path: Path) -> list[str]:
    with zstandard.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        return [json.loads(line)["text"] for line in lines]


def tokenizer(cache: Path, path: Path, spec: TrainSpec) -> Path:
    """A tokenizer.json trained on the documents, made once."""
    made = cache / f"{path.name.removesuffix('.jsonl.zst')}-{str(spec).replace(':', '-')}.json"
    if not made.exists():
        draft = made.with_suffix(f".{os.getpid()}.draft")
        draft.write_bytes(train(spec, texts(path)))
        draft.replace(made)
    return made


def corpus(settings: Settings, vocabulary: TrainSpec = VOCABULARY) -> Path:
    """The documents packed with a tokenizer of the bench's own, made once."""
    lines = json_lines(settings.cache, BYTES)
    given = settings.tokenizer or tokenizer(settings.cache, lines, vocabulary)
    folder = settings.cache / f"corpus-{str(vocabulary).replace(':', '-')}"
    pack.run(pack.Arguments(inputs=(lines,), out=folder, tokenizer=given))
    return folder
