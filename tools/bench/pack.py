"""Packing against the bare encoder.

headrace: read .jsonl.zst, tokenise, write the corpus, sync. limit: `encode_batch_fast` over the same texts in
memory, with as many threads, its results thrown away. Each round is a process of its own, its start-up left
out of the rate.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.bench import text
from tools.bench.sides import LIMIT, OURS, Round, Settings, Side, Sides


@contextmanager
def bench(settings: Settings) -> Iterator[Sides]:
    lines = text.json_lines(settings.cache, text.BYTES)
    tokenizer = settings.tokenizer or text.tokenizer(settings.cache, lines, text.VOCABULARY)
    yield Sides(
        "tokens/s",
        {name: _in_a_process(name, lines, tokenizer, settings) for name in (OURS, LIMIT)},
    )


def _in_a_process(name: str, lines: Path, tokenizer: Path, settings: Settings) -> Side:
    def round_() -> Round:
        with tempfile.TemporaryDirectory(dir=settings.cache) as out:
            command = ("-m", "tools.bench.pack_side", name, str(lines), str(tokenizer), str(settings.workers))
            done = subprocess.run(
                [sys.executable, *command, f"{out}/corpus"], stdout=subprocess.PIPE, check=True
            )
        seen = json.loads(done.stdout.splitlines()[-1])
        tokens = seen["tokens"]
        figures = {"tokens": tokens, "cpu_s_per_million_tokens": seen["cpu_s"] / tokens * 1e6}
        return Round(tokens / seen["wall_s"], figures)

    return round_
