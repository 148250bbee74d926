"""`python -m tools.corpus show|stats|what|export DIR`: what a packed corpus holds, and what a step of a run read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from stages.corpus import CorpusMeta, LocalCorpus, SpecialToken, open_corpus
from stages.corpus.megatron import export
from stages.packing import METHODS, PLANS, Method, Packing, packed
from stages.tokenise import TextTokenizer
from tools.corpus_step import Feeding, WrongArguments, pieces
from trainer.entry import DONE, guarded

BAR = 40
"""Characters of the histogram's longest bar."""


@dataclass(frozen=True)
class Show:
    """What the corpus is, and the text of some documents as its tokenizer decodes them."""

    corpus: tyro.conf.Positional[Path]
    """The folder that tools.pack wrote."""
    documents: tuple[int, ...] = ()
    """Which documents to decode, counted from 0; by default a few, spread over the corpus."""
    tokens: int = 64
    """How many tokens of each."""
    ids: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the ids too."""


@dataclass(frozen=True)
class Stats:
    """Token counts, how long documents are, and how much of a batch would be padding or dropped."""

    corpus: tyro.conf.Positional[Path]
    """The folder that tools.pack wrote."""
    seq_len: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    """The sequence lengths to tell the packings' efficiency of."""


@dataclass(frozen=True)
class What:
    """Which documents a step of a run reads: each with its share of the sample and its text's beginning there.

    It is computed from the run's settings, as the feed computes it; the corpus must be as the run had it.
    """

    path: tyro.conf.Positional[Path]
    """A run's folder or configuration; or a corpus (also one that the run's configuration does not name), with
    --seq-len, --global-batch, --seed and --packing as the run has them."""
    step: int
    """Which step, counted from 1."""
    rank: int | None = None
    """Only what this rank reads; by default what all of them read."""
    ranks: int | None = None
    """How many ranks the run has; needed with --rank."""
    tokens: int = 16
    """How many tokens to show of each document."""
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    seed: int | None = None
    packing: Method | None = None


@dataclass(frozen=True)
class Export:
    """Write the corpus as another program's files."""

    corpus: tyro.conf.Positional[Path]
    """The folder that tools.pack wrote."""
    megatron: Path
    """PREFIX of Megatron's indexed dataset: PREFIX.bin and PREFIX.idx are written."""


Command = (
    Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Stats, tyro.conf.subcommand("stats")]
    | Annotated[What, tyro.conf.subcommand("what")]
    | Annotated[Export, tyro.conf.subcommand("export")]
)

SPREAD = 3
"""Documents that `show` decodes where none is named."""


def main(argv: Sequence[str] | None = None) -> int:
    command: Show | Stats | What | Export = tyro.cli(Command, args=argv, prog="python -m tools.corpus")
    console = Console(soft_wrap=True, highlight=False)
    if isinstance(command, What):
        feeding = feeding_of(command)
        with closing(open_corpus(feeding.corpus)) as corpus:
            what(corpus, feeding, command, console)
        return DONE
    with closing(open_corpus(command.corpus)) as corpus:
        match command:
            case Show():
                show(corpus, command, console)
            case Stats():
                stats(corpus, command.seq_len, console)
            case Export():
                data, index = export(corpus, command.megatron)
                console.print(f"wrote {data} and {index}", markup=False)
    return DONE


def show(corpus: LocalCorpus, command: Show, console: Console) -> None:
    """Print what corpus.json says, then documents. Raises WrongArguments for one that is not there."""
    if command.tokens < 1:
        raise WrongArguments(f"--tokens must be 1 or more, got {command.tokens}")
    for document in command.documents:
        if not 0 <= document < len(corpus):
            raise WrongArguments(
                f"--documents: no document {document}: the corpus has 0 to {len(corpus) - 1}"
            )
    for name, value in described(corpus.meta):
        console.print(f"{name:<12} {escape(value)}")
    tokenizer = TextTokenizer.from_file(command.corpus / corpus.meta.tokenizer.name, "none")
    for document in command.documents or spread(len(corpus)):
        length = int(corpus.lengths[document])
        ids = corpus.view(document, 0, min(length, command.tokens)).tolist()
        console.print(f"\n[bold]document {document}[/bold], {length:,} tokens")
        # Decoded text may hold anything, escape codes of terminals among it.
        console.print(escape(printable(tokenizer.tokenizer.decode(ids, skip_special_tokens=False))))
        if length > command.tokens:
            console.print(f"[dim]… {length - command.tokens:,} more tokens[/dim]")
        if command.ids:
            console.print(f"[dim]{' '.join(map(str, ids))}[/dim]")


def described(meta: CorpusMeta) -> list[tuple[str, str]]:
    """What corpus.json says, in words."""
    tokenizer = meta.tokenizer
    options = ", ".join(
        f"{name} {value}" for name, value in meta.options.items() if value not in (None, (), False)
    )
    lines = [
        ("store", f"{meta.store}, {meta.dtype}"),
        ("documents", f"{meta.documents:,}"),
        ("tokens", f"{meta.tokens:,}"),
        ("tokenizer", f"{tokenizer.sha256[:16]}…, {tokenizer.vocab_size:,} ids"),
        ("special", f"eos {_token(tokenizer.eos)}, bos {_token(tokenizer.bos)}, pad {_token(tokenizer.pad)}"),
        ("inputs", ", ".join(f"{read.name} ({decimal(read.bytes)})" for read in meta.inputs) or "unknown"),
        ("options", options or "none"),
        ("quarantined", f"{0 if meta.quarantine is None else meta.quarantine.records:,}"),
        ("digest", meta.digest),
    ]
    if meta.dedup is not None:
        lines.insert(3, ("duplicates", f"{meta.dedup.dropped:,} left out"))
    if meta.part is not None:
        lines.insert(0, ("part", f"{meta.part.index} of {meta.part.of}"))
    return lines


def spread(documents: int) -> list[int]:
    """A few documents from the beginning, the middle and the end."""
    count = min(SPREAD, documents)
    return sorted({round(at * (documents - 1) / max(count - 1, 1)) for at in range(count)})


def printable(text: str) -> str:
    """`text` with every character that would act on a terminal shown as an escape."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def stats(corpus: LocalCorpus, seq_lens: Sequence[int], console: Console) -> None:
    """Print counts, a histogram of lengths, and a table of packings. Raises WrongArguments."""
    if wrong := [seq_len for seq_len in seq_lens if seq_len < 2]:
        raise WrongArguments(f"--seq-len must be 2 or more, got {wrong[0]}")
    meta = corpus.meta
    console.print(f"documents    {meta.documents:,}")
    console.print(f"tokens       {meta.tokens:,}")
    if not meta.documents:
        return
    read = sum(given.bytes for given in meta.inputs)
    if read:
        console.print(f"bytes        {decimal(read)} read, {read / max(meta.tokens, 1):.2f} for each token")
    lengths = corpus.lengths
    console.print(f"length       mean {meta.tokens / meta.documents:,.1f}, {', '.join(_quantiles(lengths))}")
    console.print("\ntokens of a document")
    rows = histogram(lengths)
    most = max(count for _, _, count in rows)
    for low, high, count in rows:
        share = count / meta.documents
        console.print(
            f"  {f'{low:,} to {high:,}':>21}  {'█' * -(-BAR * count // most):<{BAR}} {count:,} ({share:.1%})"
        )
    console.print()
    table = Table("seq_len", "packing", "samples", "kept", "dropped", "padded", "efficiency", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for seq_len in seq_lens:
        for packing in packings(corpus, seq_len):
            account = packing.account
            positions = packing.samples * seq_len
            table.add_row(
                f"{seq_len:,}",
                packing.name,
                *(f"{value:,}" for value in (packing.samples, account.kept, account.dropped, account.padded)),
                f"{account.kept / (positions + account.dropped):.2%}" if positions + account.dropped else "",
            )
    console.print(table)


def packings(corpus: LocalCorpus, seq_len: int) -> list[Packing]:
    """Every packing that there is, of this corpus."""
    return [packed(corpus, method, seq_len) for method in METHODS]


def feeding_of(command: What) -> Feeding:
    """The settings that `command` names. Raises WrongArguments, trainer's ConfigError."""
    given = {
        "--seq-len": command.seq_len,
        "--global-batch": command.global_batch,
        "--micro-batch": command.micro_batch,
        "--seed": command.seed,
        "--packing": command.packing,
    }
    if not (command.path / "corpus.json").exists():
        if named := [name for name, value in given.items() if value is not None]:
            raise WrongArguments(
                f"{', '.join(named)}: only with a corpus; {command.path} has a run's settings"
            )
        return Feeding.of_run(command.path)
    if command.seq_len is None or command.global_batch is None:
        raise WrongArguments(
            f"{command.path} is a corpus: give --seq-len and --global-batch, or a run's folder"
        )
    return Feeding(
        command.path,
        command.seq_len,
        command.global_batch,
        command.seed or 0,
        command.packing or "wrapped",
        command.micro_batch,
    )


def what(corpus: LocalCorpus, feeding: Feeding, command: What, console: Console) -> None:
    """Print the samples of a step and the documents in each. Raises WrongArguments, TokenizerError."""
    if command.tokens < 1:
        raise WrongArguments(f"--tokens must be 1 or more, got {command.tokens}")
    if (command.rank is None) != (command.ranks is None):
        raise WrongArguments("--rank and --ranks belong together: which rank, and of how many")
    share = None if command.rank is None or command.ranks is None else (command.rank, command.ranks)
    begin, end = feeding.window(command.step)
    # What only looks makes no plan's folder; a run that has one is not kept waiting for its plan here either.
    plans = feeding.corpus / PLANS
    packing = packed(corpus, feeding.packing, feeding.seq_len, plans if plans.is_dir() else None)
    if not packing.samples:
        raise WrongArguments(
            f"{feeding.corpus}: {corpus.meta.tokens:,} tokens are no sample of seq_len {feeding.seq_len}"
        )
    samples = feeding.sample_ids(packing, command.step, share).tolist()
    tokenizer = TextTokenizer.from_file(feeding.corpus / corpus.meta.tokenizer.name, "none")
    console.print(
        f"step {command.step:,}: positions {begin:,} to {end - 1:,}, epoch {begin // packing.samples + 1:,}, "
        f"{packing.samples:,} samples of {feeding.seq_len:,} tokens in each"
    )
    for sample in samples:
        console.print(f"\n[bold]sample {sample}[/bold]")
        padded = feeding.seq_len
        for piece in pieces(corpus, packing, sample):
            padded -= piece.tokens
            last = piece.first + piece.tokens
            ids = corpus.view(piece.document, piece.first, min(piece.first + command.tokens, last)).tolist()
            text = printable(tokenizer.tokenizer.decode(ids, skip_special_tokens=False))
            length = int(corpus.lengths[piece.document])
            part = "whole" if piece.tokens == length else f"tokens {piece.first} to {last - 1} of {length}"
            line = " ".join(text.split())
            more = "…" if piece.tokens > command.tokens else ""
            console.print(
                f"  document {piece.document}  {piece.tokens / feeding.seq_len:.1%}  ({part})  {escape(line)}{more}"
            )
        if padded:
            console.print(f"  padding  {padded / feeding.seq_len:.1%}")


def histogram(lengths: NDArray[np.uint32]) -> list[tuple[int, int, int]]:
    """Documents by length, in powers of two: the first and last length of each bin, and how many; from the first bin
    that has any to the last."""
    # The bits of a length: 0 for an empty document, 1 for one token, 2 for two and three, …
    bits = np.ceil(np.log2(lengths.astype(np.float64) + 1)).astype(np.int64)
    counts = np.bincount(bits)
    first = int(np.flatnonzero(counts)[0])
    return [(1 << at >> 1, (1 << at) - 1, int(counts[at])) for at in range(first, len(counts))]


def _quantiles(lengths: NDArray[np.uint32]) -> list[str]:
    names = (("least", 0), ("median", 50), ("90%", 90), ("99%", 99), ("most", 100))
    values = np.percentile(lengths, [at for _, at in names], method="lower")
    return [f"{name} {int(value):,}" for (name, _), value in zip(names, values, strict=True)]


def _token(token: SpecialToken | None) -> str:
    return "none" if token is None else f"{token.token} = {token.id}"


if __name__ == "__main__":
    raise SystemExit(guarded(main))
