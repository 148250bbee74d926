"""`python -m tools.pack INPUT… --out DIR --tokenizer FILE`: tokenise text into a corpus.

`python -m tools.pack merge PART… --out DIR`: make one corpus of the parts that `--part` has packed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import tyro
from rich.filesize import decimal

from stages.corpus.merge import merge
from stages.corpus.meta import CorpusMeta, Options, StoreName
from stages.corpus.output import TOKENIZER_FILE, Output, claimed
from stages.corpus.pack import (
    OnBad,
    PackProgress,
    PackSpec,
    appended,
    differences,
    pack,
    train_on,
    trained_before,
    unlike,
)
from stages.corpus.parts import Part
from stages.errors import CorpusNotFound, OutputTaken, TokenizerError
from stages.inputs import RECORD_BYTES, TEXT_GLOBS, Choice, Inputs, ReadSpec, scan
from stages.tokenise import TextTokenizer, TrainSpec
from tools.pack_display import display, merge_display
from trainer.entry import DONE, MISTAKE, guarded

Dedup: TypeAlias = Literal["none", "exact"]


@dataclass(frozen=True)
class Arguments:
    """Tokenise text into a corpus: JSON lines (.jsonl, .ndjson, .json, each also with .zst), plain text,
    folders.

    The same inputs and options give the same bytes, at any number of workers, on any machine. A pack that was killed
    goes on from where it was when the same command is run again.
    """

    inputs: tyro.conf.Positional[tuple[Path, ...]]
    """Files, and folders, which are walked in sorted order; a file of plain text is one document."""
    out: Path
    """The folder for the corpus: new or empty, or left unfinished by a pack that was killed or has failed."""
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
    bos: str | None = None
    """A token that begins each document; by default none does."""
    parse_special: bool = False
    """Let text that spells a special token become that token. By default it is text like any other: no document can
    say that it ends."""
    dedup: Dedup = "none"
    """exact: leave out documents whose text has come before."""
    val: float = 0.0
    """Hold out this share of the documents, chosen by the hash of their text, as a corpus of its own in DIR/val; a
    document's place does not change when others are added."""
    part: str | None = None
    """i/n: pack the i-th of n parts of the inputs, whole files each; `tools.pack merge` makes one corpus of them."""
    append: tyro.conf.FlagCreatePairsOff[bool] = False
    """Add the documents to the corpus in DIR, made with its tokenizer, its store and the same options. Whoever reads it
    goes on reading what was there."""
    limit: int | None = None
    """Stop after so many documents."""
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


@dataclass(frozen=True)
class MergeArguments:
    """Make one corpus of its parts: the same bytes as if they had been packed as one."""

    parts: tyro.conf.Positional[tuple[Path, ...]]
    """The folders of all parts, in any order."""
    out: Path
    """The folder for the corpus: new or empty."""


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] == "merge":  # a file of that name is given as ./merge
        merging = tyro.cli(MergeArguments, args=argv[1:], prog="python -m tools.pack merge")
        run_merge(merging)
        return DONE
    arguments = tyro.cli(Arguments, args=argv, prog="python -m tools.pack")
    _check(arguments)
    # Before the encoder's first use: it makes its pool of threads then, once for the process.
    os.environ["RAYON_NUM_THREADS"] = str(arguments.workers or len(os.sched_getaffinity(0)))
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    run(arguments)
    return DONE


def run(arguments: Arguments) -> CorpusMeta:
    """Pack, and print what came of it. Raises what stages.errors draws."""
    source = _tokenizer(arguments) if not arguments.append else _same_tokenizer(arguments)
    spec = _spec(arguments)
    choice = Choice(arguments.glob or TEXT_GLOBS, arguments.exclude)
    inputs = scan(arguments.inputs, choice, output=arguments.out)
    with claimed(arguments.out) as output:
        if arguments.append:
            if output.existing is None:
                raise CorpusNotFound(
                    f"{arguments.out}: holds no corpus to append to; pack one without --append"
                )
            spec = _appending(arguments.out, output.existing, source, spec)
            if appended(output.existing, inputs):
                output.settle()
                print(f"{arguments.out} holds these documents already")
                _summarise(output.existing)
                return output.existing
        elif output.existing is not None:
            _expect_same(arguments.out, output.existing, inputs, source, spec)
            print(f"{arguments.out} holds this corpus already")
            _summarise(output.existing)
            return output.existing
        if isinstance(source, TrainSpec):
            source = _trained(arguments, inputs, output, source, spec)
        last = PackProgress(0, 0, 0, 0)
        began = time.monotonic()
        with display("pack", inputs.bytes) as shown:

            def observe(progress: PackProgress) -> None:
                nonlocal last
                last = progress
                shown(progress)

            meta = pack(inputs, source, output, spec, observe)
        elapsed_s = time.monotonic() - began
    print(f"packed {', '.join(inputs.names)} into {arguments.out}")
    _summarise(meta)
    if last.saved:
        print(f"  went on      after {last.saved:,} documents that were there from before")
    print(f"  speed        {last.tokens / elapsed_s:,.0f} tokens/s over {elapsed_s:.1f} s")
    return meta


def _same_tokenizer(arguments: Arguments) -> TextTokenizer:
    """The one that is named, or the corpus's own."""
    if arguments.train_tokenizer is not None:
        raise ArgumentError("--append and --train-tokenizer exclude each other: a corpus has one tokenizer")
    path = arguments.tokenizer or arguments.out / TOKENIZER_FILE
    return TextTokenizer.from_file(
        path, arguments.eos, bos=arguments.bos, parse_special=arguments.parse_special
    )


def _appending(
    out: Path, existing: CorpusMeta, source: TextTokenizer | TrainSpec, spec: PackSpec
) -> PackSpec:
    """The spec by which the corpus goes on. Raises OutputTaken where it would become a mixture of two kinds."""
    # However its tokenizer was made: it is there.
    options = {**spec.options, "train_tokenizer": existing.options.get("train_tokenizer")}
    if isinstance(source, TextTokenizer) and (found := unlike(existing, source.meta, options)):
        raise OutputTaken(
            f"{out}: cannot be appended to: {'; '.join(found)}; use the options that it was packed with"
        )
    return replace(spec, options=options, store=existing.store, append=True)


def _trained(
    arguments: Arguments, inputs: Inputs, output: Output, source: TrainSpec, spec: PackSpec
) -> TextTokenizer:
    data = trained_before(inputs, output, spec)
    if data is None:
        with display(f"train {source}", inputs.bytes) as shown:
            data = train_on(inputs, source, spec, shown)
    name = f"--train-tokenizer {source}"
    return TextTokenizer(data, name, arguments.eos, bos=arguments.bos, parse_special=arguments.parse_special)


def run_merge(arguments: MergeArguments) -> CorpusMeta:
    """Merge, and print what came of it. Raises what stages.errors draws."""
    if not arguments.parts:
        raise ArgumentError("no PART: name the folders of all parts")
    began = time.monotonic()
    with merge_display() as shown:
        meta = merge(arguments.parts, arguments.out, shown)
    print(f"merged {len(arguments.parts)} parts into {arguments.out} in {time.monotonic() - began:.1f} s")
    _summarise(meta)
    return meta


def _check(arguments: Arguments) -> None:
    if not arguments.inputs:
        raise ArgumentError("no INPUT: name files or folders of text")
    if arguments.workers < 0:
        raise ArgumentError(f"--workers must be 1 or more, got {arguments.workers}")
    if arguments.max_record_bytes < 1:
        raise ArgumentError(f"--max-record-bytes must be 1 or more, got {arguments.max_record_bytes}")
    if not 0 <= arguments.val < 1:
        raise ArgumentError(f"--val must be a share from 0 up to but not 1, got {arguments.val}")
    if arguments.limit is not None and arguments.limit < 1:
        raise ArgumentError(f"--limit must be 1 or more, got {arguments.limit}")
    if arguments.append and (arguments.part is not None or arguments.limit is not None):
        raise ArgumentError("--append excludes --part and --limit: append whole inputs to a whole corpus")
    if arguments.part is not None and arguments.limit is not None:
        raise ArgumentError(
            "--part and --limit exclude each other: no part knows how many documents others have"
        )
    if arguments.part is not None and arguments.train_tokenizer is not None:
        raise ArgumentError(
            "--part and --train-tokenizer exclude each other: parts need one tokenizer; "
            "train it first with tools.tokenizer train"
        )
    texts = (arguments.field, arguments.eos or "", arguments.bos or "")
    for given in (*texts, *arguments.glob, *arguments.exclude):
        # An argument need not be UTF-8, but corpus.json is, and records it.
        if any("\udc80" <= letter <= "\udcff" for letter in given):
            raise ArgumentError(f"{given!r}: expected UTF-8")


def _tokenizer(arguments: Arguments) -> TextTokenizer | TrainSpec:
    match arguments.tokenizer, arguments.train_tokenizer:
        case Path() as path, None:
            return TextTokenizer.from_file(
                path, arguments.eos, bos=arguments.bos, parse_special=arguments.parse_special
            )
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
        "bos": arguments.bos,
        "parse_special": arguments.parse_special,
        "train_tokenizer": arguments.train_tokenizer,
        "max_record_bytes": arguments.max_record_bytes,
    }
    # Recorded where they are used: a corpus without them is the same one whether or not they exist.
    chosen: Options = {
        name: value
        for name, value in (
            ("dedup", arguments.dedup if arguments.dedup != "none" else None),
            ("val", repr(arguments.val) if arguments.val else None),
            ("part", arguments.part),
            ("limit", arguments.limit),
        )
        if value is not None
    }
    read = ReadSpec(field=arguments.field, record_bytes=arguments.max_record_bytes, limit=arguments.limit)
    return PackSpec(
        read=read,
        on_bad=arguments.on_bad,
        options={**options, **chosen},
        store=arguments.store,
        dedup=arguments.dedup == "exact",
        val=arguments.val,
        part=None if arguments.part is None else _part(arguments.part),
    )


def _part(text: str) -> Part:
    try:
        return Part.parse(text)
    except ValueError as error:
        raise ArgumentError(f"--part: {error}") from error


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
    if meta.dedup is not None:
        print(f"  duplicates   {meta.dedup.dropped:,} left out")
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
