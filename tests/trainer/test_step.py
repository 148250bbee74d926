"""One step against plain PyTorch written out here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainer.engine import Single
from trainer.errors import TrainingFailed
from trainer.loop import Batch
from trainer.model import GPT, ModelConfig
from trainer.optim import OptimConfig, adamw
from trainer.ranks import Alone
from trainer.step import Precision, TorchStep, step_seed

CONFIG = OptimConfig(lr=1e-2, clip_norm=0.5, decay_steps=10)


def model(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(layers=1, heads=2, width=16, dropout=dropout), vocab_size=20)


def batch(rows: int = 4, length: int = 12, masked: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 20, (rows, length), generator=generator)
    labels = ids.clone()
    labels[:, 0] = -100
    # Uneven: the first row trains fewer tokens, so a mean of means would be another loss.
    labels[0, 1 : 1 + masked] = -100
    positions = torch.arange(length).repeat(rows, 1)
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "sample_ids": torch.arange(rows)}


def split(whole: Batch, parts: int) -> list[Batch]:
    rows = whole["input_ids"].shape[0] // parts
    return [{key: value[i * rows : (i + 1) * rows] for key, value in whole.items()} for i in range(parts)]


def step_of(net: nn.Module, *, seed: int = 0, rank: int = 0, precision: Precision = "fp32") -> TorchStep:
    ranks = Alone(torch.device("cpu"), rank)
    return TorchStep(
        Single(net), net, adamw(net, CONFIG), CONFIG, ranks=ranks, seed=seed, precision=precision
    )


def updated(parts: int) -> tuple[nn.Module, float, float]:
    net = model()
    result = step_of(net)(split(batch(), parts), 0)
    return net, result.loss, result.grad_norm


def test_a_step_is_the_step_of_plain_pytorch() -> None:
    net, loss, norm = updated(parts=1)
    plain = model()
    decayed = [p for p in plain.parameters() if p.dim() >= 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": CONFIG.weight_decay},
            {"params": [p for p in plain.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=CONFIG.lr,
        betas=CONFIG.betas,
    )
    data = batch()
    logits = plain(data["input_ids"], data["position_ids"])
    expected = F.cross_entropy(logits[:, :-1].reshape(-1, 20), data["labels"][:, 1:].reshape(-1))
    expected.backward()
    expected_norm = nn.utils.clip_grad_norm_(plain.parameters(), CONFIG.clip_norm)
    optimizer.step()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert norm == pytest.approx(float(expected_norm), rel=1e-5)
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_is_invisible_with_uneven_token_counts(parts: int) -> None:
    whole, loss, norm = updated(parts=1)
    net, split_loss, split_norm = updated(parts)
    assert split_loss == pytest.approx(loss, rel=1e-6)
    assert split_norm == pytest.approx(norm, rel=1e-5)
    for ours, theirs in zip(net.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_every_trained_token_counts_once() -> None:
    net = model()
    result = step_of(net)(split(batch(masked=5), 4), 0)
    assert result.trained_tokens == 4 * 11 - 5
    assert result.padded_tokens == 0
    assert list(result.samples) == [0, 1, 2, 3]


def test_dropout_is_a_function_of_seed_step_and_rank() -> None:
    def loss(seed: int, step: int, rank: int) -> float:
        net = model(dropout=0.5)
        return step_of(net, seed=seed, rank=rank)([batch()], step).loss

    torch.manual_seed(99)
    assert loss(1, 5, 0) == loss(1, 5, 0)
    assert len({loss(1, 5, 0), loss(2, 5, 0), loss(1, 6, 0), loss(1, 5, 1)}) == 4


def test_step_seeds_do_not_collide() -> None:
    seeds = {step_seed(s, k, r) for s in range(3) for k in range(200) for r in range(8)}
    assert len(seeds) == 3 * 200 * 8
    assert all(0 <= s < 2**63 for s in seeds)


def test_a_loss_that_is_not_finite_stops_before_the_update() -> None:
    net = model()
    step = step_of(net)
    with torch.no_grad():
        net.norm.weight[0] = float("nan")
    before = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(TrainingFailed, match="step 4: loss nan"):
        step([batch()], 3)
    for now, then in zip(net.parameters(), before, strict=True):
        assert torch.equal(now.nan_to_num(), then.nan_to_num())


def test_bf16_keeps_weights_and_loss_in_fp32() -> None:
    net = model()
    result = step_of(net, precision="bf16")([batch()], 0)
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert result.loss == pytest.approx(updated(parts=1)[1], rel=1e-2)
    assert result.loss != updated(parts=1)[1]


def test_recomputed_activations_change_no_bit() -> None:
    def trained(recompute: bool) -> list[torch.Tensor]:
        net = model(dropout=0.3)
        net.recompute = recompute
        step = step_of(net)
        for number in range(3):
            step(split(batch(), 2), number)
        return [p.detach() for p in net.parameters()]

    for kept, recomputed in zip(trained(False), trained(True), strict=True):
        assert torch.equal(kept, recomputed)
