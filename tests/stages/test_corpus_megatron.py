"""The export to Megatron's files, read back as Megatron's IndexedDataset reads them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from stages.corpus import open_corpus
from stages.corpus.megatron import export
from stages.corpus.meta import Dtype, StoreName
from stages.errors import CorpusUnsupported, OutputError, OutputTaken
from tests.contracts.corpus import DOCUMENTS, write_corpus

TYPES = {4: np.int32, 8: np.uint16}


def as_megatron_reads(prefix: Path) -> list[list[int]]:
    with Path(f"{prefix}.idx").open("rb") as file:
        assert file.read(9) == b"MMIDIDX\x00\x00"
        version, code, sequences, documents = struct.unpack("<QBQQ", file.read(25))
        assert version == 1
        lengths = np.frombuffer(file.read(4 * sequences), dtype=np.int32)
        pointers = np.frombuffer(file.read(8 * sequences), dtype=np.int64)
        indices = np.frombuffer(file.read(8 * documents), dtype=np.int64)
        assert file.read() == b""
    assert indices.tolist() == list(range(sequences + 1))
    data = Path(f"{prefix}.bin").read_bytes()
    assert len(data) == lengths.sum() * np.dtype(TYPES[code]).itemsize
    return [
        np.frombuffer(data, dtype=TYPES[code], count=length, offset=pointer).tolist()
        for length, pointer in zip(lengths.tolist(), pointers.tolist(), strict=True)
    ]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_megatron_reads_the_same_documents(tmp_path: Path, dtype: Dtype, store: StoreName) -> None:
    write_corpus(tmp_path / "corpus", dtype=dtype, store=store)
    with open_corpus(tmp_path / "corpus") as corpus:
        paths = export(corpus, tmp_path / "text.document")
    assert [path.name for path in paths] == ["text.document.bin", "text.document.idx"]
    assert as_megatron_reads(tmp_path / "text.document") == DOCUMENTS


def test_nothing_is_overwritten_and_nothing_half_written_is_left(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", [[1], [2**31, 5]], "uint32")
    with open_corpus(tmp_path / "corpus") as corpus:
        with pytest.raises(CorpusUnsupported, match="token 1 does not fit"):
            export(corpus, tmp_path / "x")
        assert not list(tmp_path.glob("x*"))
        with pytest.raises(OutputError, match="No such file"):
            export(corpus, tmp_path / "nothing" / "x")
        (tmp_path / "x.idx").touch()
        with pytest.raises(OutputTaken, match=r"x\.idx"):
            export(corpus, tmp_path / "x")
        assert (tmp_path / "x.idx").exists()
