"""Packing: from inputs to a finished corpus.

TextSource ─► Encode, two calls in flight ─┬─► CorpusWriter ─┬─► corpus.json
(the loop)    (threads)                    └─► quarantine ───┘   (the consumer's thread)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from pipeline import Plan, start
from stages.corpus.meta import FORMAT, CorpusMeta, Options, SpecialToken, StoreName, TokenizerMeta
from stages.corpus.output import QUARANTINE_FILE, Output
from stages.corpus.quarantine import Quarantine
from stages.corpus.stores import STORES
from stages.errors import BadRecord, InputError
from stages.inputs.fingerprint import fingerprints, hashed
from stages.inputs.record import Bad, FileDigest
from stages.inputs.scan import Inputs
from stages.inputs.source import ReadSpec, TextSource
from stages.storage import DurableFile
from stages.tokenise import Encode, TextTokenizer, TrainSpec, train

OnBad: TypeAlias = Literal["fail", "quarantine"]

WIDTH = 2
"""Calls to the encoder in flight: one leaves its threads idle while ids are handed over, three gain
nothing."""
AHEAD = 4
"""Groups that wait at each border: enough to bridge one slow read, few enough to hold in memory."""


@dataclass(frozen=True, slots=True)
class PackProgress:
    """How far a pass over the inputs has come, since its beginning."""

    read_bytes: int
    documents: int
    tokens: int
    """0 while a tokenizer is being trained."""
    quarantined: int


Observer: TypeAlias = Callable[[PackProgress], None]


@dataclass(frozen=True, slots=True)
class PackSpec:
    """How inputs become a corpus."""

    read: ReadSpec
    on_bad: OnBad
    """What becomes of a record that breaks the rules: BadRecord is raised, or it is kept aside."""
    options: Options
    """What the caller wants recorded in corpus.json: whatever the content depends on."""
    store: StoreName = "arrow"

    def __post_init__(self) -> None:
        if self.on_bad not in get_args(OnBad):
            raise ValueError(f"on_bad is one of {', '.join(get_args(OnBad))}, got {self.on_bad!r}")


def pack(
    inputs: Inputs, tokenizer: TextTokenizer, output: Output, spec: PackSpec, observe: Observer
) -> CorpusMeta:
    """Write the corpus of `inputs` into `output`, claimed and without a corpus, and commit it.

    Raises BadRecord, InputError (also where no document is left), OutputError, OutputFull, and StageFailed
    from the engine for what a stage raised. `output` clears itself of what was not committed.
    """
    output.begin()
    folder = output.folder
    with DurableFile(folder / tokenizer.meta.name) as file:
        file.write(tokenizer.data)
    digests: list[FileDigest] = []
    plan = Plan(TextSource(inputs, spec.read), ahead=AHEAD).map(Encode(tokenizer), width=WIDTH, ahead=AHEAD)
    with (
        STORES[spec.store].writer(folder, tokenizer.dtype) as writer,
        closing(Quarantine(folder / QUARANTINE_FILE)) as quarantine,
    ):
        read_bytes = 0
        with start(plan) as running:
            for item in running:
                encoded = item.value
                _settle(encoded.bad, spec.on_bad, quarantine)
                writer.append(encoded.tokens, encoded.lengths)
                digests += encoded.finished
                read_bytes += encoded.read_bytes
                observe(PackProgress(read_bytes, writer.documents, writer.tokens, len(quarantine)))
        if writer.documents == 0:
            raise InputError(
                f"{', '.join(inputs.names)}: no document: {len(quarantine)} records, none of them good; "
                "run with --on-bad fail to see what is wrong with the first"
            )
        kept = quarantine.finish()
        written = writer.finish()
    meta = CorpusMeta(
        format=FORMAT,
        store=spec.store,
        dtype=tokenizer.dtype,
        documents=written.documents,
        tokens=written.tokens,
        digest=written.digest,
        tokenizer=tokenizer.meta,
        shards=written.shards,
        bounds=written.bounds,
        lengths=written.lengths,
        inputs=fingerprints(inputs, digests),
        options=spec.options,
        quarantine=kept,
    )
    output.commit(meta)
    return meta


def train_on(inputs: Inputs, train_spec: TrainSpec, spec: PackSpec, observe: Observer) -> bytes:
    """Train a tokenizer on the documents that `pack` would pack, and return its tokenizer.json."""

    def texts() -> Generator[str, None, None]:
        read_bytes = documents = bad = 0
        with start(Plan(TextSource(inputs, spec.read), ahead=AHEAD)) as running:
            for item in running:
                group = item.value
                if spec.on_bad == "fail":
                    _refuse(group.bad)
                yield from group.texts
                read_bytes += group.read_bytes
                documents += len(group.texts)
                bad += len(group.bad)
                observe(PackProgress(read_bytes, documents, 0, bad))

    # The trainer stops pulling where it fails; the generator is closed so that the engine ends with it.
    with closing(texts()) as source:
        return train(train_spec, source)


def differences(
    existing: CorpusMeta, inputs: Inputs, tokenizer: TokenizerMeta | None, spec: PackSpec
) -> list[str]:
    """What makes a finished corpus another one than would be packed; empty where it is the same.

    `tokenizer` is None where it would be trained: then the inputs and the options decide. Inputs are hashed
    only if all else is equal. Raises InputError.
    """
    found: list[str] = []
    if existing.store != spec.store:
        found.append(f"its store is {existing.store}, not {spec.store}")
    if tokenizer is not None and existing.tokenizer != tokenizer:
        was, now = existing.tokenizer, tokenizer
        found.append(
            f"eos is {_token(was.eos)} there and {_token(now.eos)} here"
            if was.sha256 == now.sha256
            else f"the tokenizer is {was.sha256[:12]}… there and {now.sha256[:12]}… here"
        )
    keys = [*existing.options, *(key for key in spec.options if key not in existing.options)]
    for key in keys:
        was_option, now_option = existing.options.get(key), spec.options.get(key)
        if was_option != now_option:
            found.append(f"{key} is {was_option!r} there and {now_option!r} here")
    if existing.quarantine is not None and spec.on_bad == "fail":
        found.append(f"it has {existing.quarantine.records} records quarantined, and --on-bad is fail here")
    if tuple(given.name for given in existing.inputs) != inputs.names:
        was_from, now_from = _names(given.name for given in existing.inputs), _names(inputs.names)
        found.append(f"it was made from {was_from}, not from {now_from}")
    if not found and existing.inputs != fingerprints(inputs, hashed(inputs)):
        found.append("its inputs had another content")
    return found


def _settle(bad: Sequence[Bad], on_bad: OnBad, quarantine: Quarantine) -> None:
    if on_bad == "fail":
        _refuse(bad)
    for record in bad:
        quarantine.add(record)


def _refuse(bad: Sequence[Bad]) -> None:
    if bad:
        first = bad[0]
        raise BadRecord(
            f"{first.provenance}: {first.reason.replace('_', ' ')}: {first.detail}; "
            "mend the record, or pass --on-bad quarantine to keep such records aside"
        )


def _token(token: SpecialToken | None) -> str:
    return "none" if token is None else repr(token.token)


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)
