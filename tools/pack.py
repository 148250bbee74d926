"""`python -m tools.pack INPUT… --out DIR --tokenizer FILE`: tokenise text into a corpus."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.filesize import decimal

from stages.corpus.meta import CorpusMeta, Options, StoreName
from stages.corpus.output import claimed
from stages.corpus.pack import OnBad, PackSpec, differences, pack, train_on
from stages.errors import OutputTaken, TokenizerError
from stages.inputs import RECORD_BYTES, TEXT_GLOBS, Choice, Inputs, ReadSpec, scan
from stages.tokenise import TextTokenizer, TrainSpec
from tools.pack_display import display
from trainer.entry import DONE, MISTAKE, guarded


@dataclass(frozen=True)
class Arguments:
    """Tokenise text into a corpus: JSON lines (.jsonl, .ndjson, .json, each also with .zst), plain text,
    folders.

    The same inputs and options give the same bytes, at any number of workers, on any machine.
    """

    inputs: tyro.conf.Positional[tuple[Path, ...]]
    """Files, and folders, which are walked in sorted order; a file of plain text is one document."""
    out: Path
    """The folder for the corpus: new or empty, or left unfinished by a pack that was killed."""
    tokenizer: Path | None = None
    """A tokenizer.json; a copy goes into the corpus."""
    train_tokenizer: str | None = None
    """bpe:SIZE: train a byte-level BPE of SIZE tokens on the inputs instead."""
    field: str = "text"
    """The field of a JSON line that holds the document."""
    store: StoreName = "arrow"
    """arrow: files that pyarrow, polars and duckdb open as they are. lmdb: a database of documents by number."""
    glob: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Which files of a folder to read, by name, or with a slash by the path below it; may be repeated. By
    default the usual suffixes of prose, source code and JSON lines."""
    exclude: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Which of them, and which folders, to leave out; may be repeated."""
    eos: str | None = None
    """The token that ends each document, or "none". By default the tokenizer's, under any of the usual
    names."""
    on_bad: OnBad = "fail"
    """A record that is no text (invalid UTF-8, broken JSON, no such field, empty, too long, damaged zstd):
    stop at the first, or keep such records aside in the corpus."""
    workers: Annotated[int, tyro.conf.arg(help_behavior_hint="(default: the CPUs that may be used)")] = 0
    """Threads that encode."""
    max_record_bytes: int = RECORD_BYTES
    """A line, or a file of plain text, that is longer is a bad record: encoding takes 200 times its size in memory."""


class ArgumentError(Exception):
    """An argument that no run can use."""

    exit_code = MISTAKE


def main(argv: Sequence[str] | None = None) -> int:
    arguments = tyro.cli(Arguments, args=argv, prog="python -m tools.pack")
    _check(arguments)
    # Before the encoder's first use: it makes its pool of threads then, once for the process.
    os.environ["RAYON_NUM_THREADS"] = str(arguments.workers or len(os.sched_getaffinity(0)))
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    run(arguments)
    return DONE


def run(arguments: Arguments) -> CorpusMeta:
    """Pack, and print what came of it. Raises what stages.errors draws."""
    source = _tokenizer(arguments)
    spec = _spec(arguments)
    choice = Choice(arguments.glob or TEXT_GLOBS, arguments.exclude)
    inputs = scan(arguments.inputs, choice, output=arguments.out)
    with claimed(arguments.out) as output:
        if output.existing is not None:
            _expect_same(arguments.out, output.existing, inputs, source, spec)
            print(f"{arguments.out} holds this corpus already")
            _summarise(output.existing)
            return output.existing
        if isinstance(source, TrainSpec):
            with display(f"train {source}", inputs.bytes) as shown:
                data = train_on(inputs, source, spec, shown)
            source = TextTokenizer(data, f"--train-tokenizer {source}", arguments.eos)
        began = time.monotonic()
        with display("pack", inputs.bytes) as shown:
            meta = pack(inputs, source, output, spec, shown)
        elapsed_s = time.monotonic() - began
    print(f"packed {', '.join(inputs.names)} into {arguments.out}")
    _summarise(meta)
    print(f"  speed        {meta.tokens / elapsed_s:,.0f} tokens/s over {elapsed_s:.1f} s")
    return meta


def _check(arguments: Arguments) -> None:
    if not arguments.inputs:
        raise ArgumentError("no INPUT: name files or folders of text")
    if arguments.workers < 0:
        raise ArgumentError(f"--workers must be 1 or more, got {arguments.workers}")
    if arguments.max_record_bytes < 1:
        raise ArgumentError(f"--max-record-bytes must be 1 or more, got {arguments.max_record_bytes}")
    for given in (arguments.field, *arguments.glob, *arguments.exclude, arguments.eos or ""):
        # An argument need not be UTF-8, but corpus.json is, and records it.
        if any("\udc80" <= letter <= "\udcff" for letter in given):
            raise ArgumentError(f"{given!r}: expected UTF-8")


def _tokenizer(arguments: Arguments) -> TextTokenizer | TrainSpec:
    match arguments.tokenizer, arguments.train_tokenizer:
        case Path() as path, None:
            return TextTokenizer.from_file(path, arguments.eos)
        case None, str() as text:
            return TrainSpec.parse(text)
        case None, None:
            raise TokenizerError(
                "no tokenizer: give --tokenizer FILE, or make one with --train-tokenizer bpe:32768"
            )
        case _:
            raise TokenizerError("--tokenizer and --train-tokenizer exclude each other: give one of them")


def _spec(arguments: Arguments) -> PackSpec:
    options: Options = {
        "field": arguments.field,
        "glob": arguments.glob,
        "exclude": arguments.exclude,
        "eos": arguments.eos,
        "train_tokenizer": arguments.train_tokenizer,
        "max_record_bytes": arguments.max_record_bytes,
    }
    read = ReadSpec(field=arguments.field, record_bytes=arguments.max_record_bytes)
    return PackSpec(read=read, on_bad=arguments.on_bad, options=options, store=arguments.store)


def _expect_same(
    out: Path, existing: CorpusMeta, inputs: Inputs, source: TextTokenizer | TrainSpec, spec: PackSpec
) -> None:
    tokenizer = source.meta if isinstance(source, TextTokenizer) else None
    if found := differences(existing, inputs, tokenizer, spec):
        raise OutputTaken(
            f"{out}: holds another corpus: {'; '.join(found)}; choose another --out, or remove that corpus first"
        )


def _summarise(meta: CorpusMeta) -> None:
    print(f"  documents    {meta.documents:,}")
    print(f"  tokens       {meta.tokens:,} ({meta.dtype}, {_ending(meta)})")
    print(
        f"  bytes        {decimal(sum(i.bytes for i in meta.inputs))} read, {decimal(_stored(meta))} stored"
    )
    print(f"  quarantined  {_quarantined(meta)}")
    print(f"  digest       {meta.digest}")


def _ending(meta: CorpusMeta) -> str:
    eos = meta.tokenizer.eos
    return "no eos" if eos is None else f"eos {eos.token} = {eos.id}"


def _stored(meta: CorpusMeta) -> int:
    return sum(file.bytes for file in meta.files())


def _quarantined(meta: CorpusMeta) -> str:
    if meta.quarantine is None:
        return "0"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in meta.quarantine.reasons.items())
    return f"{meta.quarantine.records:,} ({reasons}), kept in {meta.quarantine.file.name}"


if __name__ == "__main__":
    raise SystemExit(guarded(main))
