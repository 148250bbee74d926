"""What a pack has made so far: encoded documents in, one or two stores out, and all of it saved at one moment.

Encoded ─► duplicates left out ─┬─► train: CorpusWriter, hashes.bin ─┐
           (Seen, by hash)      └─► val:   the same, in its folder ──┤
           bad records ───────────► quarantine.jsonl ────────────────┼─► save, finish
           files' digests ────────► files.spool ─────────────────────┘
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from pipeline import State
from stages.corpus.arrow_layout import index_generation
from stages.corpus.growing import FileMark, GrowingFile, NotResumable
from stages.corpus.meta import (
    FORMAT,
    CorpusMeta,
    DedupMeta,
    FileMeta,
    InputMeta,
    Options,
    PartMeta,
    QuarantineMeta,
    StoreName,
)
from stages.corpus.opening import open_corpus
from stages.corpus.output import (
    FILES_FILE,
    FILES_SPOOL,
    HASHES_FILE,
    QUARANTINE_FILE,
    VAL_FOLDER,
    Output,
    claimed,
    numbered,
)
from stages.corpus.parts import Part
from stages.corpus.quarantine import FILE_MODE, Quarantine
from stages.corpus.reader import Tokens
from stages.corpus.seen import Seen, held_out
from stages.corpus.stores import STORES
from stages.corpus.writer import Saved, Written
from stages.errors import BadRecord, CorpusDamaged, InputError, OutputTaken
from stages.inputs.fingerprint import fingerprints
from stages.inputs.record import Bad, FileDigest
from stages.inputs.scan import Inputs
from stages.inputs.source import ReadSpec
from stages.storage import DurableFile, writing
from stages.tokenise import Encoded, TextTokenizer

_COPY_BYTES = 4 << 20

OnBad: TypeAlias = Literal["fail", "quarantine"]

SAVE_EVERY_S = 3.0
"""What a kill may cost. When a save falls changes no byte of the result; each takes some 20 ms."""


@dataclass(frozen=True, slots=True)
class PackProgress:
    """How far a pass over the inputs has come."""

    read_bytes: int
    """Since its beginning, whoever has read them."""
    documents: int
    """By this process."""
    tokens: int
    """By this process; 0 while a tokenizer is being trained."""
    quarantined: int
    saved: int = 0
    """Documents that a pack which was killed had saved, and this one has gone on after."""


@dataclass(frozen=True, slots=True)
class PackSpec:
    """How inputs become a corpus."""

    read: ReadSpec
    on_bad: OnBad
    """What becomes of a record that breaks the rules: BadRecord is raised, or it is kept aside."""
    options: Options
    """What the caller wants recorded in corpus.json: whatever the content depends on."""
    store: StoreName = "arrow"
    dedup: bool = False
    """Leave out documents whose text has come before."""
    val: float = 0.0
    """The share of documents, chosen by the hash of their text, that goes into a corpus of its own in `val`."""
    append: bool = False
    """Add to the corpus that is there, in place of making one."""
    part: Part | None = None
    """Which part of the inputs to read; None: all."""
    save_every_s: float = SAVE_EVERY_S

    def __post_init__(self) -> None:
        if self.on_bad not in get_args(OnBad):
            raise ValueError(f"on_bad is one of {', '.join(get_args(OnBad))}, got {self.on_bad!r}")
        if not 0 <= self.val < 1:
            raise ValueError(f"val is a share from 0 up to but not 1, got {self.val}")


class Target:
    """One corpus that is being written: its store, and the hashes of its documents where they are kept."""

    def __init__(self, output: Output, tokenizer: TextTokenizer, spec: PackSpec, at: State | None) -> None:
        """`at`: `mark`'s, to go on from. Raises NotResumable."""
        self.output = output
        base = output.existing
        self.generation = 0 if base is None else (index_generation(base.lengths.name) or 0) + 1
        mark: State | None = None
        self.dropped = 0
        hashes: FileMark | None = None
        if at is not None:
            if not (
                isinstance(store := at.get("store"), dict) and isinstance(dropped := at.get("dropped"), int)
            ):
                raise NotResumable(f"no mark of a corpus: {at!r}")
            mark, self.dropped = store, dropped
            hashes = FileMark.parse(at["hashes"]) if spec.dedup else None
        if base is not None and mark is None:
            self.writer = STORES[spec.store].appending(output.folder, base, _lengths(output.folder))
        else:
            self.writer = STORES[spec.store].writer(output.folder, tokenizer.dtype, mark)
        self._hashes: GrowingFile | None = None
        if spec.dedup:
            try:
                name = numbered(HASHES_FILE, self.generation)
                self._hashes = GrowingFile(output.folder / name, at=hashes)
                if base is not None and base.dedup is not None and at is None:
                    self.dropped = base.dedup.dropped
                    copy_into(self._hashes, output.folder / base.dedup.hashes.name)
            except BaseException:
                self.writer.close()
                raise

    def add(self, tokens: Tokens, lengths: NDArray[np.uint32], hashes: NDArray[np.uint64] | None) -> None:
        self.writer.append(tokens, lengths)
        if self._hashes is not None and hashes is not None:
            self._hashes.write(hashes.astype("<u8", copy=False).tobytes())

    def seen(self) -> NDArray[np.uint64]:
        """Of the documents that are here already; shape (documents, 2)."""
        if self._hashes is None or not self._hashes.size:
            return np.zeros((0, 2), dtype=np.uint64)
        return np.fromfile(self._hashes.path, dtype="<u8").reshape(-1, 2)

    def extras(self) -> State:
        """What to record beside the store's mark."""
        hashes = None if self._hashes is None else self._hashes.mark().state()
        return {"hashes": hashes, "dropped": self.dropped}

    def mark(self) -> State:
        return {"store": self.writer.mark(), **self.extras()}

    def finish(self) -> tuple[Written, DedupMeta | None]:
        dedup = None
        if self._hashes is not None:
            self._hashes.sync()
            dedup = DedupMeta(FileMeta.of(self._hashes), self.dropped)
        return self.writer.finish(), dedup

    def close(self) -> None:
        self.writer.close()
        if self._hashes is not None:
            self._hashes.close()


class UnfinishedPack:
    """A context manager: leaving it closes every file. See `pack` for what it raises."""

    def __init__(self, output: Output, tokenizer: TextTokenizer, spec: PackSpec, saved: Saved | None) -> None:
        self._output, self._tokenizer, self._spec = output, tokenizer, spec
        self._files = ExitStack()
        self._seen = Seen()
        self._digests: list[FileDigest] = []
        progress: State = {} if saved is None else saved.progress
        self.source = cast("State | None", progress.get("source"))
        """Where to read on; None: from the beginning."""
        self._ended = cast("int | None", progress.get("ended"))
        """Once everything has been added: the documents of val. A val that has them has been committed."""
        self._read_bytes = cast("int", progress.get("read_bytes", 0))
        try:
            self._open(progress, saved)
        except BaseException:
            self._files.close()
            raise
        self._before = self._sum("documents"), self._sum("tokens")
        # Of the corpora that are appended to.
        self._bases = sum(
            target.output.existing.documents
            for target in self._targets()
            if target.output.existing is not None
        )

    def _open(self, progress: State, saved: Saved | None) -> None:
        folder, spec = self._output.folder, self._spec
        train = None if saved is None else {"store": saved.mark, **_part(progress, "train")}
        self._train = self._target(self._output, train)
        self._val: Target | None = None
        self._val_output: Output | None = None
        if spec.val:
            self._val_output = output = self._files.enter_context(claimed(folder / VAL_FOLDER))
            output.keep = saved is not None
            if output.existing is not None and output.existing.documents == self._ended:
                output.settle()  # of a writer that was killed before it had committed the other one
            elif (output.existing is not None) != spec.append:
                raise NotResumable(f"{output.folder}: is of another moment")
            else:
                if saved is None:
                    self._begin_val(output)
                self._val = self._target(output, None if saved is None else _part(progress, "val"))
        base = self._output.existing
        before = None if base is None else base.quarantine
        path = folder / numbered(QUARANTINE_FILE, self._train.generation)
        at = _seeded(path, folder, before) if saved is None else _part(progress, "quarantine")
        self._quarantine = Quarantine(path, at)
        self._files.callback(self._quarantine.close)
        if len(self._quarantine) > (0 if before is None else before.records) and spec.on_bad == "fail":
            raise OutputTaken(
                f"{folder}: the pack that was killed here has kept {len(self._quarantine)} bad records aside: "
                "run it again with --on-bad quarantine, or remove the folder"
            )
        digests = None if saved is None else FileMark.parse(progress.get("files"))
        self._digested = GrowingFile(folder / FILES_SPOOL, at=digests)
        self._files.callback(self._digested.close)
        if digests is not None:
            for line in (folder / FILES_SPOOL).read_bytes().splitlines():
                raw = json.loads(line)
                self._digests.append(FileDigest(raw["index"], raw["bytes"], raw["blake3"]))
        if spec.dedup:
            for target in self._targets():
                self._seen.first(target.seen())

    def _target(self, output: Output, at: State | None) -> Target:
        target = Target(output, self._tokenizer, self._spec, at)
        self._files.callback(target.close)
        return target

    def _begin_val(self, output: Output) -> None:
        if output.existing is not None:
            output.begin({"append": True})
            return
        output.begin()
        with DurableFile(output.folder / self._tokenizer.meta.name) as file:
            file.write(self._tokenizer.data)

    def _targets(self) -> list[Target]:
        return [self._train] if self._val is None else [self._train, self._val]

    @property
    def progress(self) -> PackProgress:
        return PackProgress(
            self._read_bytes,
            self._sum("documents") - self._before[0],
            self._sum("tokens") - self._before[1],
            len(self._quarantine),
            self._before[0] - self._bases,
        )

    def _sum(self, what: Literal["documents", "tokens"]) -> int:
        return sum(cast("int", getattr(target.writer, what)) for target in self._targets())

    def add(self, encoded: Encoded, resume: State) -> None:
        """Take what came of one group. Raises BadRecord under `fail`."""
        if self._spec.on_bad == "fail":
            refuse(encoded.bad)
        for record in encoded.bad:
            self._quarantine.add(record)
        self._route(encoded)
        for digest in encoded.finished:
            self._digests.append(digest)
            self._digested.write(json.dumps(asdict(digest)).encode() + b"\n")
        self._read_bytes += encoded.read_bytes
        self.source = resume

    def _route(self, encoded: Encoded) -> None:
        tokens, lengths, hashes = encoded.tokens, encoded.lengths, encoded.hashes
        if hashes is None:
            self._train.add(tokens, lengths, None)
            return
        aside = held_out(hashes, self._spec.val) if self._spec.val else np.zeros(lengths.size, dtype=np.bool_)
        new = self._seen.first(hashes) if self._spec.dedup else np.ones(lengths.size, dtype=np.bool_)
        for target, chosen in ((self._train, ~aside), (self._val, aside)):
            if target is not None:
                kept = chosen & new
                target.add(tokens[np.repeat(kept, lengths)], lengths[kept], hashes[kept])
                target.dropped += int((chosen & ~new).sum())

    def save(self, *, ended: int | None = None) -> None:
        """Make durable all that has been added: a pack that is killed later goes on from here."""
        val = None if self._val is None else self._val.mark()
        self._train.writer.save(
            {
                "source": self.source,
                "read_bytes": self._read_bytes,
                "train": self._train.extras(),
                "val": val,
                "quarantine": self._quarantine.mark(),
                "files": self._digested.mark().state(),
                "ended": ended,
            }
        )
        for output in (self._output, self._val_output):
            if output is not None:
                output.keep = True

    def finish(self, inputs: Inputs, chosen: Inputs) -> CorpusMeta:
        """Commit. `chosen`: the files that were read, of `inputs`. Raises InputError where there is no document."""
        # A part may have no file, and whatever is appended may be there already.
        may_be_empty = self._spec.part is not None or (self._spec.append and self._spec.dedup)
        if self._sum("documents") == self._bases and not may_be_empty and self._ended is None:
            raise InputError(
                f"{', '.join(inputs.names)}: no document: {len(self._quarantine)} records, none of them good; "
                "run with --on-bad fail to see what is wrong with the first"
            )
        limited = self._spec.read.limit is not None
        read = fingerprints(chosen, self._digests, limited=limited)
        if self._val is not None:
            # Two commits: whoever is killed between them finds val's made, and everything packed.
            self.save(ended=self._val.writer.documents)
            self._commit(self._val, read, {**self._spec.options, "split": "val"}, None, None)
        kept = self._quarantine.finish()
        return self._commit(self._train, read, self._spec.options, kept, self._part(inputs, chosen))

    def _part(self, inputs: Inputs, chosen: Inputs) -> PartMeta | None:
        if self._spec.part is None:
            return None
        path = self._output.folder / FILES_FILE
        with writing(path):
            path.unlink(missing_ok=True)  # of a writer that was killed here
        with DurableFile(path) as file:
            for digest, of in zip(self._digests, chosen.files, strict=True):
                line = {
                    "argument": of.argument,
                    "label": of.label,
                    "bytes": digest.bytes,
                    "blake3": digest.blake3,
                }
                file.write(json.dumps(line).encode() + b"\n")
        part = self._spec.part
        return PartMeta(part.index, part.of, inputs.names, inputs.folders, FileMeta.of(file))

    def _commit(
        self,
        target: Target,
        read: tuple[InputMeta, ...],
        options: Options,
        kept: QuarantineMeta | None,
        part: PartMeta | None,
    ) -> CorpusMeta:
        written, dedup = target.finish()
        base = target.output.existing
        meta = CorpusMeta(
            format=FORMAT,
            store=self._spec.store,
            dtype=self._tokenizer.dtype,
            documents=written.documents,
            tokens=written.tokens,
            digest=written.digest,
            tokenizer=self._tokenizer.meta,
            shards=written.shards,
            bounds=written.bounds,
            lengths=written.lengths,
            inputs=read if base is None else (*base.inputs, *read),
            options=options,
            quarantine=kept,
            dedup=dedup,
            part=part,
        )
        target.output.commit(meta)
        return meta

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()


def refuse(bad: Sequence[Bad]) -> None:
    """Raises BadRecord for the first of them, if any."""
    if bad:
        first = bad[0]
        raise BadRecord(
            f"{first.provenance}: {first.reason.replace('_', ' ')}: {first.detail}; "
            "mend the record, or pass --on-bad quarantine to keep such records aside"
        )


def copy_into(file: DurableFile, source: Path) -> None:
    """Write the whole of `source`. Raises CorpusDamaged where it cannot be read."""
    try:
        with source.open("rb") as opened:
            while piece := opened.read(_COPY_BYTES):
                file.write(piece)
    except OSError as error:
        raise CorpusDamaged(
            f"{source}: cannot be read ({error.strerror}); restore the file or pack again"
        ) from error


def _lengths(folder: Path) -> NDArray[np.uint32]:
    # Mapped, and the store itself let go: its writer must not find it open.
    with open_corpus(folder) as corpus:
        return corpus.lengths


def _seeded(path: Path, folder: Path, before: QuarantineMeta | None) -> State | None:
    """A quarantine that begins with the records that the corpus has kept aside."""
    if before is None:
        return None
    with DurableFile(path, FILE_MODE) as file:
        copy_into(file, folder / before.file.name)
    return {"file": FileMark(file.size, file.blake3).state(), "reasons": dict(before.reasons)}


def _part(progress: State, name: str) -> State:
    part = progress.get(name)
    if not isinstance(part, dict):
        raise NotResumable(f"nothing recorded of {name}")
    return part
