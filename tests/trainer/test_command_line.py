"""`python -m trainer` as a user meets it: mistakes, damage, resumes. Each run is a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from checkpoint import Checkpointer, Store
from tests.corpora import random_documents, write_corpus
from tests.trainer_process import STEPS, Outcome, outcome, trained, write_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 6 steps with versions 1 and 2, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    ended = trained(write_config(folder), "--train.steps", "6", "--optim.decay_steps", str(STEPS))
    assert ended.code == 0, ended.output
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A folder of one's own with a corpus and a run that can be resumed."""
    shutil.copytree(made / "corpus", tmp_path / "corpus")
    shutil.copytree(made / "run", tmp_path / "run")
    write_config(tmp_path)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, but for the lock: who holds it is no content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def refused(file: Path, *arguments: str, code: int = 2) -> str:
    """The message of a run that must end with `code`, without a traceback, and change nothing in its folder."""
    run = file.with_suffix("")
    before = files(run) if run.exists() else {}
    ended = trained(file, *arguments)
    assert ended.code == code, ended.output
    assert "Traceback" not in ended.output
    assert (files(run) if run.exists() else {}) == before
    return ended.output


def test_a_misspelt_key_names_the_nearest(place: Path) -> None:
    file = place / "run.toml"
    file.write_text(file.read_text().replace("warmup_steps", "warmup_step"))
    assert f"{file}:\n  optim.warmup_step: no such key; did you mean 'warmup_steps'?" in refused(file)


def test_a_misspelt_override_names_the_nearest(place: Path) -> None:
    message = refused(place / "run.toml", "--optim.warmup-step", "3")
    assert "--optim.warmup-step" in message
    assert "--optim.warmup-steps" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--train.global-batch", "9"), "train.global_batch 9 is no multiple of ranks x micro_batch = 1 x 4"),
        (("--resume", "newest"), "expected latest, none or a version's number"),
        (("--resume", "7"), "has no version 7: it has 1 to 2"),
        (("--run.device", "tpu"), "device"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(
    place: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused(place / "run.toml", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data.corpus", "nowhere"), "nowhere: no such folder; pack a corpus there with tools.pack"),
        (("--freeze.patterns", "layers.*"), "'layers.*' matches no parameter; they are named like"),
        (("--data.seq-len", "1000"), "519 tokens, too few for one sample of seq_len 1000"),
        (("--resume", "3"), "holds no versions yet"),
    ],
)
def test_a_mistake_leaves_no_empty_run_behind(place: Path, arguments: tuple[str, ...], message: str) -> None:
    file = write_config(place, run="new")
    assert message in refused(file, *arguments)
    assert not (place / "new").exists()


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    ended = trained(tmp_path / "absent.toml")
    assert ended.code == 2
    assert "absent.toml: no such file" in ended.output


def test_another_corpus_is_refused_and_what_differs_is_named(place: Path) -> None:
    write_corpus(place / "other", random_documents([519], vocab_size=64, seed=5), vocab_size=64)
    message = refused(place / "run.toml", "--data.corpus", str(place / "other"))
    assert "48 samples were consumed from other data: corpus: saved" in message


def test_a_corpus_that_moved_is_the_same_corpus(place: Path) -> None:
    (place / "corpus").rename(place / "moved")
    assert trained(place / "run.toml", "--data.corpus", str(place / "moved")).code == 0


@pytest.mark.parametrize(
    "arguments", [(), ("--allow-change", "model.width", "--allow-change", "model.layers")]
)
def test_another_model_is_refused_with_every_difference(place: Path, arguments: tuple[str, ...]) -> None:
    """By the configuration first; and by the tensors, where the configuration was accepted."""
    message = refused(place / "run.toml", "--model.width", "64", "--model.layers", "3", *arguments)
    if not arguments:
        assert "model.width: 32 in the version, 64 now" in message
        assert "model.layers: 2 in the version, 3 now" in message
        return
    assert "nothing was changed" in message
    # 3 layers of 8 parameters, the embedding and the final norm's two.
    for index in range(2):
        assert f"model/blocks.{index}.attention.qkv.weight" in message
        assert f"exp_avg_sq/blocks.{index}.mlp.0.bias" in message
    assert "model/blocks.2.attention.qkv.weight" in message
    assert "model/embedding.weight" in message


def test_wrong_resume_is_refused(place: Path) -> None:
    """A version whose optimizer has other keys."""
    with Checkpointer(place / "run" / "versions") as checkpointer:
        plain = checkpointer.restore(None, {}).plain
        kept = {name: plain[name] for name in ("feed", "progress", "config", "environment")}
        checkpointer.save(6, {"model": {}, "optimizer": {"momentum": {"blocks.9.weight": _tensor()}}, **kept})
        checkpointer.wait()
    message = refused(place / "run.toml")
    assert "momentum/blocks.9.weight: AdamW keeps no 'momentum'" in message
    assert "model/embedding.weight" in message


def _tensor() -> object:
    import torch

    return torch.zeros(3)


def newest(place: Path) -> Path:
    return sorted((place / "run" / "versions" / "versions").iterdir())[-1]


def test_a_truncated_version_is_an_error_and_allow_older_goes_on(place: Path) -> None:
    newest(place).write_bytes(newest(place).read_bytes()[:-7])
    message = refused(place / "run.toml", code=1)
    assert "version 2 is damaged" in message
    assert "The last good version is 1: go on from it with --allow-older" in message
    ended = trained(place / "run.toml", "--allow-older")
    assert ended.code == 0, ended.output
    assert "resuming from version 1 at step 3" in ended.output
    assert "version 2 is damaged" in ended.output
    # From an older version the run comes to the same end.
    versions = Store(place / "run" / "versions")
    weights = versions.digest(versions.versions()[-1], ["model", "optimizer"])
    assert weights == outcome_of_whole(place).weights


def test_a_flipped_bit_in_a_pack_is_found_and_the_tensor_named(place: Path) -> None:
    packs = place / "run" / "versions" / "packs"
    pack = max(packs.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    message = refused(place / "run.toml", code=1)
    assert pack.name.removesuffix(".pack") in message
    assert "tensor " in message
    assert "The last good version is" in message


def test_a_folder_that_cannot_be_written_is_named(place: Path) -> None:
    (place / "file").write_text("in the way")
    message = refused(place / "run.toml", "--run.dir", str(place / "file" / "run"))
    assert f"{place}/file/run: cannot be made: Not a directory" in message


def test_a_second_trainer_is_refused(place: Path) -> None:
    with Checkpointer(place / "run" / "versions"):
        message = refused(place / "run.toml")
    assert "is being written by process" in message
    assert str(os.getpid()) in message


@dataclass(frozen=True)
class SmallDisk:
    path: Path

    def fill(self, leave_bytes: int) -> None:
        free = os.statvfs(self.path)
        (self.path / "filler").write_bytes(bytes(free.f_bavail * free.f_bsize - leave_bytes))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    point = tmp_path / "disk"
    point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", point], check=False)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield SmallDisk(point)
    subprocess.run(["umount", point], check=True)


def test_no_space_left_is_a_clear_error_and_the_run_goes_on_when_there_is(
    place: Path, small_disk: SmallDisk
) -> None:
    run = small_disk.path / "run"
    shutil.copytree(place / "run", run)
    small_disk.fill(leave_bytes=200 << 10)
    before = Store(run / "versions").list()
    ended = trained(place / "run.toml", "--run.dir", str(run))
    assert ended.code == 1, ended.output
    assert "no space left" in ended.output.lower()
    assert "Traceback" not in ended.output
    assert Store(run / "versions").list() == before
    (small_disk.path / "filler").unlink()
    assert trained(place / "run.toml", "--run.dir", str(run)).code == 0
    assert outcome(run) == outcome_of_whole(place)


def outcome_of_whole(place: Path) -> Outcome:
    assert trained(write_config(place, run="uninterrupted")).code == 0
    return outcome(place / "uninterrupted")


def test_a_changed_key_is_refused_until_it_is_allowed_and_then_told(place: Path) -> None:
    message = refused(place / "run.toml", "--optim.lr", "1e-3")
    assert "optim.lr: 0.01 in the version, 0.001 now" in message
    assert "--allow-change optim.lr" in message
    ended = trained(place / "run.toml", "--optim.lr", "1e-3", "--allow-change", "optim.lr")
    assert ended.code == 0, ended.output
    assert "changed since the version: optim.lr: 0.01 in the version, 0.001 now" in ended.output


def test_a_reader_that_goes_away_does_not_end_the_run(place: Path) -> None:
    code = "from trainer.__main__ import main; from trainer.entry import guarded; import sys;"
    code += "raise SystemExit(guarded(lambda: main(sys.argv[1:])))"
    file = place / "run.toml"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code, str(file)], stdout=writer, cwd=ROOT, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert outcome(place / "run") == outcome_of_whole(place)


def test_a_failure_is_in_the_log(place: Path) -> None:
    ended = trained(place / "run.toml", "--optim.lr", "1e30", "--allow-change", "optim.lr")
    assert ended.code == 1, ended.output
    assert "not finite" in ended.output
    last = json.loads((place / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "failed"
    assert "not finite" in last["error"]


def test_a_smaller_global_batch_that_was_allowed_goes_on(place: Path) -> None:
    arguments = ("--train.global-batch", "4", "--allow-change", "train.global_batch")
    ended = trained(place / "run.toml", *arguments)
    assert ended.code == 0, ended.output
    assert f"done: step {STEPS}" in ended.output


def test_a_corpus_is_no_run(place: Path) -> None:
    message = refused(place / "run.toml", "--run.dir", str(place / "corpus"))
    assert "holds a corpus; a run needs a folder of its own" in message


def test_lines_that_a_kill_cut_short_are_mended(place: Path) -> None:
    for name in ("metrics.jsonl", "log.jsonl"):
        with (place / "run" / name).open("a") as file:
            file.write('{"step": 7, "lo')
    with (place / "run" / "metrics.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n")
    assert trained(place / "run.toml").code == 0
    assert outcome(place / "run") == outcome_of_whole(place)
    events = (place / "run" / "log.jsonl").read_text().splitlines()
    assert sum(line.startswith('{"step": 7, "lo') for line in events) == 1
    assert json.loads(events[-1])["event"] == "end"


def test_other_threads_are_a_warning(place: Path) -> None:
    ended = trained(place / "run.toml", "--run.threads", "2")
    assert ended.code == 0, ended.output
    assert "warning: bits may differ from the uninterrupted run: threads: 1 then, 2 now" in ended.output


def test_resume_none_begins_again_and_loses_no_version(place: Path) -> None:
    before = Store(place / "run" / "versions").list()
    assert trained(place / "run.toml", "--resume", "none").code == 0
    after = Store(place / "run" / "versions").list()
    assert after[: len(before)] == before
    assert after[len(before)].parent is None
    assert outcome(place / "run") == outcome_of_whole(place)


def test_resume_from_a_number_replaces_the_lines_after_it(place: Path) -> None:
    ended = trained(place / "run.toml", "--resume", "1")
    assert ended.code == 0, ended.output
    assert "resuming from version 1 at step 3" in ended.output
    assert outcome(place / "run") == outcome_of_whole(place)


def test_the_resolved_configuration_resumes_the_run(place: Path) -> None:
    assert trained(place / "run.toml").code == 0
    resolved = place / "resolved.toml"
    shutil.copy(place / "run" / "config.toml", resolved)
    ended = trained(resolved)
    assert ended.code == 0, ended.output
    assert f"resuming from version 5 at step {STEPS}" in ended.output


def test_honest_throughput(place: Path) -> None:
    """With accumulation 4, tokens per second count every trained token once."""
    file = write_config(place, run="accumulated")
    assert trained(file, "--train.micro-batch", "2").code == 0
    assert trained(write_config(place, run="plain"), "--train.micro-batch", "8").code == 0
    lines = [json.loads(line) for line in (place / "accumulated" / "metrics.jsonl").read_text().splitlines()]
    plain = [json.loads(line) for line in (place / "plain" / "metrics.jsonl").read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [line["tokens"] for line in plain]
    for line in lines:
        # 8 samples of 16 positions, at most 15 of them predicted; padding is counted apart.
        assert line["tokens"] <= 8 * 15
        assert line["padded_tokens"] == 0
        # Both are rounded: to 0.1 tokens/s and to 1 us.
        assert line["tokens_per_s"] == pytest.approx(line["tokens"] / line["seconds"], rel=1e-3)
        assert sum(line["phases"].values()) <= line["seconds"] + 1e-5
    assert lines[-1]["tokens_total"] == sum(line["tokens"] for line in lines)
