"""Training jobs of one or more ranks for benches: real trainers in processes of their own, read by their metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypedDict

from stages.tokenise import TrainSpec

VOCABULARY = TrainSpec(4096)
"""Small, so that the gradient of the embedding, which comes last and can hide behind nothing, is a small part."""
SEQ_LEN, STEPS, WARM_UP = 256, 9, 3

CONFIG = """\
[run]
dir = "{run}"
threads = 1
device = "cpu"
[data]
corpus = "{corpus}"
seq_len = {seq_len}
[model]
layers = 6
heads = 6
width = 384
[train]
steps = {steps}
global_batch = {global_batch}
micro_batch = {micro_batch}
[comms]
bucket_mb = 4.0
[checkpoint]
every_steps = 1000
"""


class Line(TypedDict):
    tokens: int
    seconds: float
    comms_s: float
    comms_bytes: int
    phases: dict[str, float]


@dataclass(frozen=True, slots=True)
class Host:
    """Where a rank runs: what its command begins with, and its network interface."""

    prefix: tuple[str, ...] = ()
    interface: str | None = None
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Job:
    """What a job has shown, medians over its steps after the first few."""

    tokens_per_s: float
    step_s: float
    comms_s: float
    exposed_s: float

    @property
    def hidden_share(self) -> float:
        """Of the time of reductions, what backward covered."""
        return 1 - self.exposed_s / self.comms_s if self.comms_s else 1.0


def train(corpus: Path, hosts: Sequence[Host], *, global_batch: int, micro_batch: int, port: int) -> Job:
    """A GPT of 12 M parameters on one rank a host, one thread each."""
    with tempfile.TemporaryDirectory() as folder:
        run, file = Path(folder) / "run", Path(folder) / "run.toml"
        shape = {"global_batch": global_batch, "micro_batch": micro_batch, "seq_len": SEQ_LEN, "steps": STEPS}
        file.write_text(CONFIG.format(run=run, corpus=corpus.absolute(), **shape))
        ranks = [_start(file, host, rank, hosts, port) for rank, host in enumerate(hosts)]
        outputs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise RuntimeError("a training job failed:\n" + "\n".join(outputs))
        lines: list[Line] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = lines[WARM_UP:]
    return Job(
        tokens_per_s=median(line["tokens"] / line["seconds"] for line in timed),
        step_s=median(line["seconds"] for line in timed),
        comms_s=median(line["comms_s"] for line in timed),
        exposed_s=median(line["phases"]["exposed_comms"] for line in timed),
    )


def _start(file: Path, host: Host, rank: int, hosts: Sequence[Host], port: int) -> subprocess.Popen[str]:
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(port),
    }
    if host.interface is not None:
        variables["GLOO_SOCKET_IFNAME"] = host.interface
    return subprocess.Popen(
        [*host.prefix, sys.executable, "-m", "trainer", str(file)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
