"""`python -m tools.tokenizer train|convert|show`: tokenizers, as `tools.pack --tokenizer` takes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import tyro
from rich.console import Console
from rich.markup import escape

from stages import sentencepiece
from stages.corpus.pack import OnBad, PackSpec, train_on
from stages.errors import OutputTaken, TokenizerError
from stages.inputs import TEXT_GLOBS, Choice, ReadSpec, scan
from stages.sentencepiece import SentencePieceModel
from stages.storage import publish
from stages.tiktoken import PATTERNS, Special, converted, parse_ranks
from stages.tokenise import TextTokenizer, TrainSpec
from tools.corpus import printable
from tools.pack_display import display
from trainer.entry import DONE, guarded

PatternName: TypeAlias = Literal["gpt2", "cl100k", "o200k", "qwen"]


@dataclass(frozen=True)
class Train:
    """Train a byte-level BPE on text: the same file for the same inputs, at any number of workers."""

    inputs: tyro.conf.Positional[tuple[Path, ...]]
    """Files and folders, read as tools.pack reads them."""
    out: Path
    """The tokenizer.json to write; it must not be there yet."""
    size: int = 32768
    """Tokens, <|endoftext|> among them."""
    field: str = "text"
    """The field of a record that holds the document."""
    glob: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Which files of a folder to read; may be repeated."""
    exclude: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Which of them to leave out; may be repeated."""
    on_bad: OnBad = "fail"
    """A record that is no text: stop at the first, or pass over such records."""


@dataclass(frozen=True)
class Convert:
    """Make a tokenizer.json with equal ids for every text: of a tiktoken rank file (lines of base64 and rank) with
    --pattern, or of a sentencepiece model without."""

    source: tyro.conf.Positional[Path]
    """The rank file, such as cl100k_base.tiktoken; or the model, such as tokenizer.model."""
    out: Path
    """The tokenizer.json to write; it must not be there yet."""
    pattern: PatternName | None = None
    """Of a rank file: how the text is cut before bytes are merged: the publisher of the ranks says which."""
    special: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """TOKEN=ID, such as '<|endoftext|>=100257'; may be repeated. Rank files hold none; a model holds its own."""


@dataclass(frozen=True)
class Show:
    """What a tokenizer is, and how it cuts a text."""

    tokenizer: tyro.conf.Positional[Path]
    """A tokenizer.json."""
    text: str = "Hello, world! Ünïcode 漢字 😀"
    """The text to cut."""


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Convert, tyro.conf.subcommand("convert")]
    | Annotated[Show, tyro.conf.subcommand("show")]
)


def main(argv: Sequence[str] | None = None) -> int:
    command: Train | Convert | Show = tyro.cli(Command, args=argv, prog="python -m tools.tokenizer")
    console = Console(soft_wrap=True, highlight=False)
    match command:
        case Train():
            train(command, console)
        case Convert():
            convert(command, console)
        case Show():
            show(command.tokenizer, command.text, console)
    return DONE


def train(command: Train, console: Console) -> None:
    """Raises what stages.errors draws."""
    _check_free(command.out)
    spec = TrainSpec.parse(f"bpe:{command.size}")
    inputs = scan(command.inputs, Choice(command.glob or TEXT_GLOBS, command.exclude), output=command.out)
    reading = PackSpec(read=ReadSpec(field=command.field), on_bad=command.on_bad, options={})
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    with display(f"train {spec}", inputs.bytes) as shown:
        data = train_on(inputs, spec, reading, shown)
    _write(command.out, data, console)


def convert(command: Convert, console: Console) -> None:
    """Raises TokenizerError, OutputTaken, OutputError, OutputFull."""
    _check_free(command.out)
    specials = tuple(Special.parse(text) for text in command.special)
    try:
        data = command.source.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"{command.source}: cannot be read: {error.strerror}; give a rank file or a model"
        ) from error
    if command.pattern is None:
        if specials:
            raise TokenizerError(f"{command.source}: --special is for rank files, which need --pattern too")
        model = SentencePieceModel.parse(data, str(command.source))
        _write(command.out, sentencepiece.converted(model), console)
        return
    ranks = parse_ranks(data, str(command.source))
    _write(command.out, converted(ranks, PATTERNS[command.pattern], specials), console)


def show(path: Path, text: str, console: Console) -> None:
    """Raises TokenizerError."""
    tokenizer = TextTokenizer.from_file(path, "none", parse_special=True)
    meta = tokenizer.meta
    model = type(tokenizer.tokenizer.model).__name__
    added = sorted(tokenizer.tokenizer.get_added_tokens_decoder().items())
    console.print(f"{'model':<12} {model}, {meta.vocab_size:,} ids ({tokenizer.dtype})")
    console.print(f"{'sha256':<12} {meta.sha256}")
    shown = ", ".join(f"{token.content} = {number}" for number, token in added[:12])
    console.print(f"{'special':<12} {escape(printable(shown)) or 'none'}{', …' if len(added) > 12 else ''}")
    encoding = tokenizer.tokenizer.encode(text, add_special_tokens=False)
    pieces = "|".join(text[begin:end] for begin, end in encoding.offsets)
    console.print(f"{'text':<12} {escape(printable(pieces))}")
    console.print(f"{'ids':<12} {' '.join(map(str, encoding.ids))}")
    back = tokenizer.tokenizer.decode(encoding.ids, skip_special_tokens=False)
    console.print(f"{'decoded':<12} {'the same text' if back == text else escape(printable(back))}")


def _check_free(out: Path) -> None:
    if out.exists():
        raise OutputTaken(f"{out}: is there already; choose another --out, or remove it first")


def _write(out: Path, data: bytes, console: Console) -> None:
    made = TextTokenizer(data, str(out), "none").meta
    publish(out, data)
    console.print(f"wrote {out}: {made.vocab_size:,} ids, sha256 {made.sha256}", markup=False)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
