"""Under torchrun itself: a signal to it, a rank that dies, a restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint import Store
from tests.faults.test_ranks import BUCKETS, PARTS
from tests.trainer_process import STEPS, ended, launch, outcome, write_config

ROOT = Path(__file__).parents[2]


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_torchrun_saves_on_all_ranks(tmp_path: Path, number: signal.Signals) -> None:
    file = write_config(tmp_path)
    # Many steps: the run must still be going when the signal comes.
    job = torchrun("-m", "trainer", str(file), *BUCKETS, *PARTS, "--train.steps", "100000")
    assert job.stdout is not None
    output = []
    for line in job.stdout:
        output.append(line)
        if line.startswith("step ") and len(output) > 3:
            job.send_signal(number)
            break
    output += job.stdout.readlines()
    job.stdout.close()
    job.wait(60)
    text = "".join(output)
    last = Store(tmp_path / "run" / "versions").list()[-1]
    assert f"stopped by {number.name}: step {last.step}," in text, text
    assert f"version {last.version} at step {last.step}:" in text
    Store(tmp_path / "run" / "versions").verify(last.version)


def test_max_restarts_resumes_exactly(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    script = [str(ROOT / "tests" / "dies_once.py"), str(tmp_path / "mark"), "8"]
    job = torchrun("--max-restarts", "1", *script, str(file), *BUCKETS, *PARTS)
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 0, output
    assert "resuming from version 2 at step 6" in output
    reference = write_config(tmp_path, run="reference")
    codes = [e.code for e in ended(launch(reference, 2, *BUCKETS, *PARTS), reference)]
    assert codes == [0, 0]
    assert outcome(tmp_path / "run", STEPS) == outcome(tmp_path / "reference", STEPS)


def test_a_rank_that_dies_takes_the_job_down_with_its_error_shown(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    job = torchrun(
        str(ROOT / "tests" / "dies_once.py"), str(tmp_path / "mark"), "8", str(file), *BUCKETS, *PARTS
    )
    output, _ = job.communicate(timeout=120)
    assert job.returncode != 0
    assert "rank" in output
    assert "-9" in output or "SIGKILL" in output, output
