"""Parts of a corpus, packed anywhere, made one: the same bytes as if one machine had packed everything.

part 1/n ─┐
part 2/n ─┼─► documents in order ─► duplicates over all parts left out ─► CorpusWriter ─► corpus.json
part n/n ─┘                                                              (and the same for val)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from stages.corpus.meta import CorpusMeta, DedupMeta, FileMeta, InputMeta, PartMeta, QuarantineMeta
from stages.corpus.opening import open_corpus
from stages.corpus.output import HASHES_FILE, QUARANTINE_FILE, VAL_FOLDER, Output, claimed, discard
from stages.corpus.quarantine import FILE_MODE
from stages.corpus.reader import LocalCorpus, Tokens
from stages.corpus.seen import Seen
from stages.corpus.spans import Spans
from stages.corpus.stores import STORES
from stages.corpus.unfinished import copy_into
from stages.errors import CorpusUnsupported, OutputTaken
from stages.storage import DurableFile

AT_ONCE_TOKENS = 1 << 20

Observer: TypeAlias = Callable[[int], None]
"""Told how many tokens have been written."""


def merge(parts: Sequence[Path], out: Path, observe: Observer) -> CorpusMeta:
    """Write the corpus of all parts, given in any order, into `out`.

    Raises CorpusUnsupported where they are not all the parts of one corpus, what `open_corpus` raises about one of
    them, CorpusDamaged where its digest is another, OutputTaken, OutputBusy, OutputError, OutputFull.
    """
    with ExitStack() as stack:
        opened = _in_order([stack.enter_context(open_corpus(part)) for part in parts], parts)
        corpora = [corpus for corpus, _ in opened]
        folders = [folder for _, folder in opened]
        inputs = _inputs(corpora, folders)
        output = stack.enter_context(claimed(out))
        if output.existing is not None:
            raise OutputTaken(f"{out}: holds a corpus already; choose another --out, or remove it first")
        output.begin()
        discard(out / VAL_FOLDER)
        seen = Seen()
        if corpora[0].meta.options.get("val"):
            vals = [stack.enter_context(open_corpus(folder / VAL_FOLDER)) for folder in folders]
            beside = stack.enter_context(claimed(out / VAL_FOLDER))
            beside.begin()
            paths = [folder / VAL_FOLDER for folder in folders]
            _merged(vals, paths, beside, seen, inputs, observe)
        return _merged(corpora, folders, output, seen, inputs, observe)


def _in_order(corpora: Sequence[LocalCorpus], folders: Sequence[Path]) -> list[tuple[LocalCorpus, Path]]:
    """Sorted by part, and checked to be all of one corpus's."""
    found: dict[int, tuple[LocalCorpus, Path]] = {}
    first = corpora[0].meta
    for corpus, folder in zip(corpora, folders, strict=True):
        meta = corpus.meta
        if meta.part is None or first.part is None:
            raise CorpusUnsupported(
                f"{folder}: is a whole corpus; merge takes what tools.pack --part has made"
            )
        if meta.part.index in found:
            other = found[meta.part.index][1]
            raise CorpusUnsupported(f"{folder}: part {meta.part.index} is given twice, also as {other}")
        for what, here, there in (
            ("parts", meta.part.of, first.part.of),
            ("inputs", (meta.part.names, meta.part.folders), (first.part.names, first.part.folders)),
            ("store", meta.store, first.store),
            ("tokenizer", meta.tokenizer, first.tokenizer),
            ("options", _options(meta), _options(first)),
        ):
            if here != there:
                raise CorpusUnsupported(
                    f"{folder}: its {what} are {here}, those of {folders[0]} {there}: parts of one corpus agree"
                )
        found[meta.part.index] = corpus, folder
    of = _part(first).of
    if missing := [str(index) for index in range(1, of + 1) if index not in found]:
        raise CorpusUnsupported(
            f"part {', '.join(missing)} of {of} is missing: give the folders of all parts"
        )
    return [found[index] for index in range(1, of + 1)]


def _options(meta: CorpusMeta) -> dict[str, object]:
    return {name: value for name, value in meta.options.items() if name != "part"}


def _part(meta: CorpusMeta) -> PartMeta:
    if meta.part is None:
        raise ValueError("no part of a corpus")
    return meta.part


def _inputs(corpora: Sequence[LocalCorpus], folders: Sequence[Path]) -> tuple[InputMeta, ...]:
    """What one machine would have recorded of all inputs: see `fingerprints`."""
    part = _part(corpora[0].meta)
    files, sizes = [0] * len(part.names), [0] * len(part.names)
    whole = [blake3() for _ in part.names]
    alone = [""] * len(part.names)
    for corpus, folder in zip(corpora, folders, strict=True):
        for line in (folder / _part(corpus.meta).files.name).read_bytes().splitlines():
            read = json.loads(line)
            at = read["argument"]
            files[at] += 1
            sizes[at] += read["bytes"]
            alone[at] = read["blake3"]
            whole[at].update(f"{read['label']}\0{read['bytes']}\0{read['blake3']}\n".encode())
    return tuple(
        InputMeta(name, files[at], sizes[at], whole[at].hexdigest() if part.folders[at] else alone[at])
        for at, name in enumerate(part.names)
    )


def _merged(
    corpora: Sequence[LocalCorpus],
    folders: Sequence[Path],
    output: Output,
    seen: Seen,
    inputs: tuple[InputMeta, ...],
    observe: Observer,
) -> CorpusMeta:
    first = corpora[0].meta
    _copy([folders[0] / first.tokenizer.name], output.folder / first.tokenizer.name)
    dropped = 0
    hashes_file = None if first.dedup is None else DurableFile(output.folder / HASHES_FILE)
    with ExitStack() as stack:
        writer = stack.enter_context(STORES[first.store].writer(output.folder, first.dtype))
        if hashes_file is not None:
            stack.callback(hashes_file.close)
        for corpus, folder in zip(corpora, folders, strict=True):
            corpus.verify()
            hashes = None
            if corpus.meta.dedup is not None:
                dropped += corpus.meta.dedup.dropped
                hashes = np.fromfile(folder / corpus.meta.dedup.hashes.name, dtype="<u8").reshape(-1, 2)
            for begin, end in _stretches(corpus.bounds):
                tokens, lengths = _documents(corpus, begin, end)
                if hashes is not None and hashes_file is not None:
                    new = seen.first(hashes[begin:end])
                    dropped += int((~new).sum())
                    tokens, lengths = tokens[np.repeat(new, lengths)], lengths[new]
                    hashes_file.write(hashes[begin:end][new].tobytes())
                writer.append(tokens, lengths)
                observe(writer.tokens)
        dedup = None
        if hashes_file is not None:
            hashes_file.sync()
            dedup = DedupMeta(FileMeta.of(hashes_file), dropped)
        written = writer.finish()
    meta = replace(
        first,
        documents=written.documents,
        tokens=written.tokens,
        digest=written.digest,
        shards=written.shards,
        bounds=written.bounds,
        lengths=written.lengths,
        inputs=inputs,
        options=_plain_options(first),
        quarantine=_quarantine(corpora, folders, output.folder),
        dedup=dedup,
        part=None,
    )
    output.commit(meta)
    return meta


def _plain_options(meta: CorpusMeta) -> dict[str, bool | int | str | tuple[str, ...] | None]:
    return {name: value for name, value in meta.options.items() if name != "part"}


def _stretches(bounds: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The documents in runs of about AT_ONCE_TOKENS."""
    cuts = np.searchsorted(bounds, np.arange(0, int(bounds[-1]), AT_ONCE_TOKENS)).tolist()
    edges = sorted({0, *cuts, bounds.size - 1})
    return list(pairwise(edges))


def _documents(corpus: LocalCorpus, begin: int, end: int) -> tuple[Tokens, NDArray[np.uint32]]:
    first, last = int(corpus.bounds[begin]), int(corpus.bounds[end])
    ids = np.empty(last - first, dtype=np.int64)
    corpus.gather(Spans(*(np.array([value]) for value in (first, last - first, 0))), ids)
    tokens: Tokens = ids.astype(corpus.meta.dtype)
    return tokens, np.array(corpus.lengths[begin:end])


def _quarantine(corpora: Sequence[LocalCorpus], folders: Sequence[Path], out: Path) -> QuarantineMeta | None:
    kept = [
        (corpus.meta.quarantine, folder)
        for corpus, folder in zip(corpora, folders, strict=True)
        if corpus.meta.quarantine is not None
    ]
    if not kept:
        return None
    reasons: Counter[str] = Counter()
    for quarantine, _ in kept:
        if quarantine is not None:
            reasons.update(quarantine.reasons)
    sources = [folder / quarantine.file.name for quarantine, folder in kept if quarantine is not None]
    file = _copy(sources, out / QUARANTINE_FILE, FILE_MODE)
    return QuarantineMeta(FileMeta.of(file), reasons.total(), dict(sorted(reasons.items())))


def _copy(sources: Sequence[Path], target: Path, mode: int = 0o666) -> DurableFile:
    """The sources end to end."""
    with DurableFile(target, mode) as file:
        for source in sources:
            copy_into(file, source)
    return file
