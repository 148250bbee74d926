"""Overlap is shown by timestamps, on a link of 1 Gbit/s between two network namespaces."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.corpora import random_documents, write_corpus
from tools.bench.jobs import train
from tools.bench.overlap import PORT, RATE, shape, two_hosts


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")), reason="needs root and iproute2"
)
def test_reduction_hides_behind_backward(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", random_documents([40_000], vocab_size=4096), vocab_size=4096)
    with two_hosts() as hosts:
        shape(hosts, RATE)
        job = train(tmp_path / "corpus", hosts, global_batch=4, micro_batch=2, port=PORT)
    # 12 M gradients of 4 bytes at 125 MB/s take 0.38 s at the least: they did cross the link.
    assert job.comms_s > 0.35
    # The first bucket leaves while most of backward is still to come.
    assert job.hidden_share > 0.2, job
