"""One round of one side of the bench `pack`, in a process of its own; prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from stages.tokenise import TextTokenizer
from tools import pack
from tools.bench import text

LIMIT_BATCH_BYTES = 4 << 20
"""What the bare encoder gets at once: it is fastest so; with everything at once it pays for fresh memory."""


def headrace(lines: Path, tokenizer: Path, out: Path) -> Callable[[], int]:
    arguments = pack.Arguments(inputs=(lines,), out=out, tokenizer=tokenizer)
    return lambda: pack.run(arguments).tokens


def limit(lines: Path, tokenizer: Path, out: Path) -> Callable[[], int]:
    encoder = TextTokenizer.from_file(tokenizer).tokenizer
    batches: list[list[str]] = [[]]
    held = 0
    documents = 0
    for document in text.texts(lines):
        batches[-1].append(document)
        held += len(document)
        documents += 1
        if held >= LIMIT_BATCH_BYTES:
            batches.append([])
            held = 0

    def work() -> int:
        tokens = documents  # headrace writes an eos after each
        for batch in batches:
            tokens += sum(map(len, encoder.encode_batch_fast(batch, add_special_tokens=False)))
        return tokens

    return work


def main(side: str, lines: str, tokenizer: str, workers: str, out: str) -> None:
    os.environ["RAYON_NUM_THREADS"] = workers
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    work = {"headrace": headrace, "limit": limit}[side](Path(lines), Path(tokenizer), Path(out))
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = work()
    print(
        json.dumps(
            {"tokens": tokens, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
