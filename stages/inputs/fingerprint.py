"""What the inputs held, in one line an argument: known after reading them, or by hashing them alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

from stages.corpus.meta import InputMeta
from stages.errors import InputError
from stages.inputs.reading import Reading
from stages.inputs.record import FileDigest
from stages.inputs.scan import Inputs
from stages.inputs.spec import ReadSpec
from stages.storage import Storages, locate


def fingerprints(
    inputs: Inputs, digests: Iterable[FileDigest], *, limited: bool = False
) -> tuple[InputMeta, ...]:
    """One record an argument. Of a file its blake3; of a folder that of a line per file: path, size, blake3.

    `digests` must hold every file, in order: ValueError if not. Where the reading was `limited`, those that it came to
    are enough, and the others do not count.
    """
    files = [0] * len(inputs.names)
    sizes = [0] * len(inputs.names)
    whole = [blake3() for _ in inputs.names]
    alone = [""] * len(inputs.names)
    count = 0
    for index, digest in enumerate(digests):
        if digest.index != index:
            raise ValueError(f"the digest of file {digest.index} comes where that of file {index} is due")
        file = inputs.files[index]
        count += 1
        files[file.argument] += 1
        sizes[file.argument] += digest.bytes
        alone[file.argument] = digest.blake3
        whole[file.argument].update(f"{file.label}\0{digest.bytes}\0{digest.blake3}\n".encode())
    if count != len(inputs.files) and not limited:
        raise ValueError(f"{count} digests for {len(inputs.files)} files")
    return tuple(
        InputMeta(name, files[at], sizes[at], whole[at].hexdigest() if inputs.folders[at] else alone[at])
        for at, name in enumerate(inputs.names)
    )


def hashed(inputs: Inputs) -> Iterable[FileDigest]:
    """Hash every file, without reading it as text. Raises InputError, StorageUnavailable."""
    storages = Storages()
    for index, file in enumerate(inputs.files):
        if locate(file.path) is not None:
            reading = Reading(file, ReadSpec(), storages)
            asyncio.run(reading.rest())
            yield FileDigest(index, reading.read_bytes, reading.digest())
            continue
        try:
            digest = blake3(max_threads=1).update_mmap(file.path).hexdigest()
            yield FileDigest(index, Path(file.path).stat().st_size, digest)
        except OSError as error:
            raise InputError(f"{file.label}: cannot be read: {error.strerror}") from error
