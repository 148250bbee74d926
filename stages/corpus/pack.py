"""Packing: from inputs to a finished corpus.

TextSource ─► Encode, two calls in flight ─► UnfinishedPack ─┬─► CorpusWriter ──┬─► corpus.json
(the loop)    (threads)                      (the consumer)  ├─► the same, val ─┤
                                                  │          └─► quarantine ────┘
                                                  └─ every few seconds: save
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TypeAlias, cast

from blake3 import blake3

from pipeline import Plan, State, start
from stages.corpus.growing import NotResumable
from stages.corpus.meta import FORMAT, CorpusMeta, Options, SpecialToken, TokenizerMeta
from stages.corpus.output import TOKENIZER_FILE, VAL_FOLDER, Output, discard
from stages.corpus.stores import STORES
from stages.corpus.unfinished import OnBad, PackProgress, PackSpec, UnfinishedPack, refuse
from stages.errors import CorpusDamaged
from stages.inputs.fingerprint import fingerprints, hashed
from stages.inputs.scan import Inputs
from stages.inputs.source import TextSource
from stages.storage import DurableFile
from stages.storage.remote import RETRY
from stages.tokenise import Encode, TextTokenizer, TrainSpec, train

__all__ = [
    "OnBad",
    "PackProgress",
    "PackSpec",
    "appended",
    "command_of",
    "differences",
    "pack",
    "train_on",
    "trained_before",
    "unlike",
]

WIDTH = 2
"""Calls to the encoder in flight: one leaves its threads idle while ids are handed over, three gain
nothing."""
AHEAD = 4
"""Groups that wait at each border: enough to bridge one slow read, few enough to hold in memory."""


Observer: TypeAlias = Callable[[PackProgress], None]


def pack(
    inputs: Inputs, tokenizer: TextTokenizer, output: Output, spec: PackSpec, observe: Observer
) -> CorpusMeta:
    """Write the corpus of `inputs` into `output`, claimed, and commit it: one that holds no corpus, or, where `spec`
    says to append, one that does; that one stays readable as it was until the commit.

    Where a pack of the same inputs and options was killed there, it goes on from what that one saved last, to the same
    result. Raises BadRecord, InputError (also where no document is left), OutputError, OutputFull, and StageFailed
    from the engine for what a stage raised; where it appends, CorpusDamaged. What was saved before stays in `output`,
    and nothing else.
    """
    command = command_of(inputs, tokenizer.meta, spec, output.existing)
    chosen = inputs if spec.part is None else spec.part.of_inputs(inputs)
    with ExitStack() as stack:
        saved = STORES[spec.store].saved(output.folder) if output.unfinished == command else None
        if saved is not None:
            output.keep = True
            try:
                packing = stack.enter_context(UnfinishedPack(output, tokenizer, spec, saved))
            except NotResumable:
                saved = None
        if saved is None:
            output.keep = False
            output.begin(command)
            if not spec.append:
                discard(output.folder / VAL_FOLDER)
                with DurableFile(output.folder / tokenizer.meta.name) as file:
                    file.write(tokenizer.data)
            try:
                packing = stack.enter_context(UnfinishedPack(output, tokenizer, spec, None))
            except NotResumable as error:
                raise CorpusDamaged(
                    f"{output.folder}: cannot be appended to: {error}; restore what is damaged, or pack again"
                ) from error
        encode = Encode(tokenizer, hashed=spec.dedup or spec.val > 0)
        plan = Plan(TextSource(chosen, spec.read), ahead=AHEAD, retry=RETRY).map(
            encode, width=WIDTH, ahead=AHEAD
        )
        saved_at = time.monotonic()
        with start(plan, at=packing.source) as running:
            for item in running:
                packing.add(item.value, item.resume)
                observe(packing.progress)
                if time.monotonic() - saved_at >= spec.save_every_s:
                    packing.save()
                    saved_at = time.monotonic()
        return packing.finish(inputs, chosen)


def train_on(inputs: Inputs, train_spec: TrainSpec, spec: PackSpec, observe: Observer) -> bytes:
    """Train a tokenizer on the documents that `pack` would pack, and return its tokenizer.json."""

    def texts() -> Generator[str, None, None]:
        read_bytes = documents = bad = 0
        with start(Plan(TextSource(inputs, spec.read), ahead=AHEAD, retry=RETRY)) as running:
            for item in running:
                group = item.value
                if spec.on_bad == "fail":
                    refuse(group.bad)
                yield from group.texts
                read_bytes += group.read_bytes
                documents += len(group.texts)
                bad += len(group.bad)
                observe(PackProgress(read_bytes, documents, 0, bad))

    # The trainer stops pulling where it fails; the generator is closed so that the engine ends with it.
    with closing(texts()) as source:
        return train(train_spec, source)


def command_of(
    inputs: Inputs, tokenizer: TokenizerMeta | None, spec: PackSpec, base: CorpusMeta | None = None
) -> State:
    """What a pack is of, as plain data: one that was killed is gone on with where this is the same.

    Inputs by size and time of change: to hash what has been read already would cost as much as reading it.
    """
    seen = blake3()
    for file in inputs.files:
        changed = Path(file.path).stat().st_mtime_ns if Path(file.path).exists() else 0
        seen.update(f"{file.label}\0{file.bytes}\0{changed}\n".encode())
    command = {
        "format": FORMAT,
        "store": spec.store,
        "options": dict(spec.options),
        "inputs": [list(inputs.names), seen.hexdigest()],
        "tokenizer": None if tokenizer is None else asdict(tokenizer),
        "append": spec.append,
        "base": base.digest if spec.append and base is not None else None,
    }
    return cast("State", json.loads(json.dumps(command)))


def trained_before(inputs: Inputs, output: Output, spec: PackSpec) -> bytes | None:
    """The tokenizer that a killed pack of the same inputs and options had trained, if it had come to packing."""
    if output.unfinished is None or STORES[spec.store].saved(output.folder) is None:
        return None
    if {**output.unfinished, "tokenizer": None} != command_of(inputs, None, spec):
        return None
    with suppress(OSError):
        return (output.folder / TOKENIZER_FILE).read_bytes()
    return None


def unlike(existing: CorpusMeta, tokenizer: TokenizerMeta, options: Options) -> list[str]:
    """What forbids to append documents made so to a corpus; empty where they are of one kind."""
    found = _other_tokenizer(existing.tokenizer, tokenizer) + _other_options(existing.options, options)
    if existing.part is not None:
        found.append("it is a part of a larger one: merge first")
    return found


def appended(existing: CorpusMeta, inputs: Inputs) -> bool:
    """Whether these inputs are the last that were appended, or packed. Raises InputError."""
    last = existing.inputs[-len(inputs.names) :]
    if tuple(given.name for given in last) != inputs.names:
        return False
    return last == fingerprints(inputs, hashed(inputs))


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
    if tokenizer is not None:
        found += _other_tokenizer(existing.tokenizer, tokenizer)
    found += _other_options(existing.options, spec.options)
    if existing.quarantine is not None and spec.on_bad == "fail":
        found.append(f"it has {existing.quarantine.records} records quarantined, and --on-bad is fail here")
    if tuple(given.name for given in existing.inputs) != inputs.names:
        was_from, now_from = _names(given.name for given in existing.inputs), _names(inputs.names)
        found.append(f"it was made from {was_from}, not from {now_from}")
    # Where there was a limit, files after those that it came to were not read.
    count = sum(given.files for given in existing.inputs)
    if not found and existing.inputs != fingerprints(inputs, islice(hashed(inputs), count), limited=True):
        found.append("its inputs had another content")
    return found


def _other_tokenizer(was: TokenizerMeta, now: TokenizerMeta) -> list[str]:
    if was == now:
        return []
    if was.sha256 == now.sha256:
        return [f"eos is {_token(was.eos)} there and {_token(now.eos)} here"]
    return [f"the tokenizer is {was.sha256[:12]}… there and {now.sha256[:12]}… here"]


def _other_options(was: Options, now: Options) -> list[str]:
    keys = [*was, *(key for key in now if key not in was)]
    return [
        f"{key} is {was.get(key)!r} there and {now.get(key)!r} here"
        for key in keys
        if was.get(key) != now.get(key)
    ]


def _token(token: SpecialToken | None) -> str:
    return "none" if token is None else repr(token.token)


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)
