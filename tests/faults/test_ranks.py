"""Many ranks: the same batches, the same bits, clean ends. Ranks are real processes, kills are SIGKILLs."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from checkpoint import Checkpointer, Store
from stages.corpus import open_corpus
from stages.feed import FeedSpec, tensor_feed
from tests.trainer.test_models import TINY
from tests.trainer_process import (
    STEPS,
    Ended,
    KillAfterOperation,
    Outcome,
    SignalAfterStep,
    ended,
    launch,
    outcome,
    trained,
    write_config,
)
from trainer.model import GPT, ModelConfig
from trainer.optim import OptimConfig, learning_rate

BUCKETS = ("--comms.bucket-mb", "0.02")
"""Six buckets of the small model: with one, or on two ranks (a + b = b + a), sums in another order would not show."""
WITHOUT_DROPOUT = ("--model.dropout", "0.0")
"""Dropout is drawn by (seed, step, rank): on another number of ranks it is another one."""
PARTS = ("--train.global-batch", "12", "--train.micro-batch", "2")
"""A global batch that 1, 2 and 3 ranks make up."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


def on_ranks(
    file: Path, size: int, *arguments: str, hooks: Mapping[int, object] | None = None
) -> list[Ended]:
    return ended(launch(file, size, *BUCKETS, *PARTS, *arguments, hooks=hooks), file)  # type: ignore[arg-type]


def ran(file: Path, size: int, *arguments: str) -> Outcome:
    for rank, end in enumerate(on_ranks(file, size, *arguments)):
        assert end.code == 0, f"rank {rank}: {end.output}"
    return outcome(file.with_suffix(""))


@pytest.fixture(scope="module")
def uninterrupted(place: Path) -> dict[int, Outcome]:
    return {size: ran(write_config(place, run=f"whole-{size}"), size) for size in (1, 2, 3)}


def rounded(lines: Sequence[Mapping[str, object]], keys: Sequence[str]) -> list[list[object]]:
    return [[line[key] for key in keys] for line in lines]


def test_the_small_model_has_several_buckets(place: Path, uninterrupted: dict[int, Outcome]) -> None:
    """With one bucket there is one order of sums, and a resume that forgets it would not show."""
    hooks = {0: CountBuckets(place / "sizes.json")}
    ends = on_ranks(write_config(place, run="buckets"), 2, "--train.steps", "2", hooks=hooks)
    assert [e.code for e in ends] == [0, 0], ends[0].output
    # The first backward of a process, the one that is thrown away, has buckets of its own; all others are alike.
    settled, *steps = json.loads((place / "sizes.json").read_text())
    assert len(steps[0]) > 3
    assert steps[0] == steps[1] != settled


@pytest.mark.parametrize("size", [1, 2, 3])
def test_killed_twice(place: Path, uninterrupted: dict[int, Outcome], size: int) -> None:
    """One rank is killed, at a step drawn at random, twice; the others end by themselves, and the end is the same."""
    draw = random.Random(size)
    file = write_config(place, run=f"killed-{size}")
    for step in (draw.randrange(2, 7), draw.randrange(7, STEPS)):
        victim = draw.randrange(size)
        codes = [e.code for e in on_ranks(file, size, hooks={victim: SignalAfterStep(step)})]
        assert codes[victim] == -signal.SIGKILL
        assert all(code not in (0, None) for code in codes), codes
    assert ran(file, size) == uninterrupted[size]


def kill_at_random_moments(file: Path, size: int, draw: random.Random, seconds: float) -> None:
    """Twice: one rank dies, and the others are told to end, as torchrun would do."""
    for _ in range(2):
        processes = launch(file, size, *BUCKETS, *PARTS)
        victim = processes[draw.randrange(size)]
        victim.join(draw.uniform(0, seconds))  # the moment itself is what is tested, nothing waits for it
        victim.kill()
        victim.join()
        for process in processes:
            process.terminate()
        assert all(end.code is not None for end in ended(processes, file)), "a rank hangs"


@pytest.mark.parametrize("size", [2, 3])
def test_killed_at_random_moments(place: Path, uninterrupted: dict[int, Outcome], size: int) -> None:
    file = write_config(place, run=f"moments-{size}")
    kill_at_random_moments(file, size, random.Random(size), seconds=2.0)
    assert ran(file, size) == uninterrupted[size]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_killed_at_many_random_moments(place: Path, uninterrupted: dict[int, Outcome], size: int) -> None:
    for seed in range(10):
        file = write_config(place, run=f"moments-{size}-{seed}")
        kill_at_random_moments(file, size, random.Random(100 * size + seed), seconds=2.0)
        assert ran(file, size) == uninterrupted[size], f"seed {seed}"


def test_world_size_changes(place: Path) -> None:
    """3, then 2, then 1 ranks in mid-epoch: the same global batches by sample id, losses equal to rounding."""
    file = write_config(place, run="changing")
    for size, steps in ((3, 5), (2, 9), (1, STEPS)):
        until = ("--train.steps", str(steps), "--optim.decay_steps", str(STEPS))
        ran_to = on_ranks(file, size, *WITHOUT_DROPOUT, *until)
        assert [e.code for e in ran_to] == [0] * size, ran_to[0].output
    got, whole = outcome(place / "changing"), ran(write_config(place, run="steady"), 1, *WITHOUT_DROPOUT)
    exact = ("step", "position", "samples", "tokens", "tokens_total", "lr")
    assert rounded(got.lines, exact) == rounded(whole.lines, exact)
    for line, expected in zip(got.lines, whole.lines, strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)


@pytest.mark.parametrize(("size", "micro_batch"), [(1, 12), (1, 3), (1, 1), (2, 3), (3, 4), (3, 1)])
def test_accumulation_is_invisible(place: Path, plain: Plain, size: int, micro_batch: int) -> None:
    """Losses, gradient norms and weights are those of plain PyTorch in one process, with uneven token counts."""
    file = write_config(place, run=f"split-{size}-{micro_batch}")
    ends = on_ranks(file, size, *WITHOUT_DROPOUT, "--train.micro-batch", str(micro_batch))
    assert [e.code for e in ends] == [0] * size, ends[0].output
    got = outcome(file.with_suffix(""))
    assert len({line["tokens"] for line in got.lines}) > 1, "token counts are even"
    # Gradients travel once a step, whatever the accumulation.
    gradient_bytes = sum(p.numel() * 4 for p in plain.model.parameters()) if size > 1 else 0
    assert {line["comms_bytes"] for line in got.lines} == {gradient_bytes}
    for line, loss, norm in zip(got.lines, plain.losses, plain.norms, strict=True):
        assert line["loss"] == pytest.approx(loss, rel=1e-5)
        assert line["grad_norm"] == pytest.approx(norm, rel=1e-4)
    model = plain_model()
    with Checkpointer(file.with_suffix("") / "versions") as checkpointer:
        checkpointer.restore(None, {"model": model})
    for (name, ours), theirs in zip(model.named_parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@dataclass(frozen=True)
class Plain:
    model: GPT
    losses: list[float]
    norms: list[float]


def plain_model() -> GPT:
    torch.manual_seed(7)
    return GPT(ModelConfig(layers=2, heads=2, width=32), vocab_size=64)


@pytest.fixture(scope="module")
def plain(place: Path) -> Plain:
    """The same run as a bare PyTorch loop: whole global batches, the mean loss, nothing of the trainer's step."""
    write_config(place)
    config = OptimConfig(lr=1e-2, warmup_steps=3, decay_steps=STEPS)
    model = plain_model()
    groups = [
        {"params": [p for p in model.parameters() if (p.dim() >= 2) == matrices], "weight_decay": decay}
        for matrices, decay in ((True, config.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    losses, norms = [], []
    with open_corpus(place / "corpus") as corpus:
        spec = FeedSpec(seq_len=16, batch_size=12, seed=7, end=12 * STEPS)
        for step, batch in enumerate(tensor_feed(corpus, spec)):
            logits = model(batch["input_ids"], batch["position_ids"])
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, 64), batch["labels"][:, 1:].reshape(-1))
            loss.backward()  # type: ignore[no-untyped-call]
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)))
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, step)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return Plain(model, losses, norms)


@dataclass(frozen=True)
class CountBuckets:
    """Writes the sizes of the buckets of every backward, as JSON."""

    path: Path

    def __call__(self) -> None:
        import trainer.engine

        launched = trainer.engine.CpuTimer.launched
        backwards: list[list[int]] = []

        def noted(timer: trainer.engine.CpuTimer, size: int) -> None:
            if not timer._starts:
                backwards.append([])
            backwards[-1].append(size)
            self.path.write_text(json.dumps(backwards))
            launched(timer, size)

        trainer.engine.CpuTimer.launched = noted  # type: ignore[method-assign]


@dataclass(frozen=True)
class SignalInEvaluation:
    """Gets a signal in the middle of the first evaluation."""

    number: signal.Signals

    def __call__(self) -> None:
        import trainer.evaluation

        count = trainer.evaluation.trained_tokens

        def signalled(batch: dict[str, torch.Tensor]) -> int:
            os.kill(os.getpid(), self.number)
            return count(batch)

        trainer.evaluation.trained_tokens = signalled


def held_out(place: Path, every: int) -> tuple[str, ...]:
    return ("--eval.corpus", str(place / "corpus"), "--eval.every-steps", str(every), "--eval.batches", "6")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm(place: Path, uninterrupted: dict[int, Outcome], number: signal.Signals) -> None:
    """To one rank of two, during evaluation: all ranks save the same step and exit 0."""
    file = write_config(place, run=f"signal-{number.name}")
    ends = on_ranks(file, 2, *held_out(place, every=4), hooks={1: SignalInEvaluation(number)})
    assert [e.code for e in ends] == [0, 0], ends[0].output + ends[1].output
    assert "stopped by another rank's signal: step 4" in ends[0].output
    assert Store(file.with_suffix("") / "versions").list()[-1].step == 4
    assert ran(file, 2) == uninterrupted[2]


def test_evaluation_is_the_same_on_any_number_of_ranks(place: Path) -> None:
    found = {}
    for size in (1, 3):
        file = write_config(place, run=f"evaluated-{size}")
        ends = on_ranks(file, size, *WITHOUT_DROPOUT, *held_out(place, every=7))
        assert [e.code for e in ends] == [0] * size
        events = [json.loads(line) for line in (file.with_suffix("") / "log.jsonl").read_text().splitlines()]
        found[size] = [(e["step"], e["loss"], e["tokens"]) for e in events if e["event"] == "evaluation"]
    assert [step for step, _, _ in found[1]] == [7, 14]
    for (step, loss, tokens), (other_step, other_loss, other_tokens) in zip(found[1], found[3], strict=True):
        assert (step, tokens) == (other_step, other_tokens)
        assert loss == pytest.approx(other_loss, rel=1e-4)


@pytest.mark.parametrize("count", [4, 9, 14])
def test_a_rank_killed_in_the_middle_of_a_save(
    place: Path, uninterrupted: dict[int, Outcome], count: int
) -> None:
    file = write_config(place, run=f"save-{count}")
    ends = on_ranks(file, 3, hooks={1: KillAfterOperation(count, place / "record")})
    assert ends[1].code == -signal.SIGKILL
    assert all(e.code not in (0, None) for e in ends)
    store = Store(file.with_suffix("") / "versions")
    for info in store.list():
        store.verify(info.version)
    assert ran(file, 3) == uninterrupted[3]


def test_a_rank_that_stands_still_for_10_seconds(place: Path, uninterrupted: dict[int, Outcome]) -> None:
    file = write_config(place, run="stopped")
    processes = launch(file, 2, *BUCKETS, *PARTS, hooks={1: SignalAfterStep(5, signal.SIGSTOP)})
    processes[0].join(10)  # the ten seconds are what is tested: rank 0 waits all the while
    assert processes[0].exitcode is None
    assert processes[1].pid is not None
    os.kill(processes[1].pid, signal.SIGCONT)
    assert [e.code for e in ended(processes, file)] == [0, 0]
    assert outcome(file.with_suffix("")) == uninterrupted[2]


def test_a_global_batch_that_ranks_do_not_make_up_is_refused_by_all(place: Path) -> None:
    file = write_config(place, run="odd")
    ends = on_ranks(file, 3, "--train.global-batch", "8")
    assert [e.code for e in ends] == [2, 2, 2]
    assert "train.global_batch 8 is no multiple of ranks x micro_batch = 3 x 2" in ends[0].output
    assert not file.with_suffix("").exists()


def test_a_second_job_is_refused_on_all_its_ranks(place: Path) -> None:
    file = write_config(place, run="taken")
    assert trained(file, "--train.steps", "2").code == 0
    with Checkpointer(file.with_suffix("") / "versions"):
        ends = on_ranks(file, 2)
    assert [e.code for e in ends] == [2, 2], ends[1].output
    assert "is being written by process" in ends[0].output


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_hugging_face_model_is_resumed_bit_for_bit(place: Path, kind: str) -> None:
    config = place / f"{kind}.json"
    config.write_text(json.dumps(TINY[kind]))
    model = ("--model.kind", "hf", "--model.path", str(config), "--train.activation-checkpointing")
    whole = ran(write_config(place, run=f"{kind}-whole"), 2, *model)
    file = write_config(place, run=f"{kind}-killed")
    ends = on_ranks(file, 2, *model, hooks={0: SignalAfterStep(8)})
    assert ends[0].code == -signal.SIGKILL
    assert ran(file, 2, *model) == whole


def test_bf16_is_resumed_bit_for_bit(place: Path) -> None:
    bf16 = ("--train.precision", "bf16")
    whole = ran(write_config(place, run="bf16-whole"), 2, *bf16)
    file = write_config(place, run="bf16-killed")
    assert on_ranks(file, 2, *bf16, hooks={1: SignalAfterStep(8)})[1].code == -signal.SIGKILL
    assert ran(file, 2, *bf16) == whole


def test_other_ranks_are_a_warning(place: Path) -> None:
    file = write_config(place, run="warned")
    for size, steps in ((2, "3"), (1, "4")):
        ends = on_ranks(file, size, "--train.steps", steps, "--optim.decay_steps", str(STEPS))
        assert ends[0].code == 0, ends[0].output
    assert "bits may differ from the uninterrupted run: world_size: 2 then, 1 now" in ends[0].output
