"""One optimizer step in plain torch, by any engine, on any number of ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.engine import Engine
from trainer.errors import TrainingFailed
from trainer.loop import Batch, StepResult
from trainer.optim import OptimConfig, learning_rate
from trainer.ranks import Ranks

Precision: TypeAlias = Literal["fp32", "bf16"]


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of the randomness inside a step (dropout): a pure function, so a resume needs no generator state.

    The finaliser of splitmix64 (Steele, Lea & Flood 2014) over the three numbers, cut to torch's 63 bits.
    """
    mask = (1 << 64) - 1
    z = 0
    for part in (seed, step, rank):
        z = (z ^ (part & mask)) + 0x9E3779B97F4A7C15 & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        z ^= z >> 31
    return z >> 1


def summed_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Cross entropy summed over trained tokens, in fp32. Labels are unshifted: position t is predicted from t - 1."""
    return F.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1).float(),
        labels_BT[:, 1:].flatten(),
        ignore_index=-100,
        reduction="sum",
    )


def trained_tokens(batch: Batch) -> int:
    return int((batch["labels"][:, 1:] != -100).sum())


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Around a forward: fp32 as it is, or matrix products in bf16 with weights, sums and the loss in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


class TorchStep:
    """Forward and backward over the micro batches, one clipped AdamW update, the same on every rank.

    The loss is normalised by the step's trained tokens over all micro batches and ranks, so that neither
    accumulation nor world size changes it (a mean of means would weight tokens by how full their batch is).
    """

    def __init__(
        self,
        engine: Engine,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: OptimConfig,
        *,
        ranks: Ranks,
        seed: int,
        precision: Precision = "fp32",
    ) -> None:
        self._engine, self._optimizer, self._config, self._ranks = engine, optimizer, config, ranks
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._seed, self._precision = seed, precision

    def __call__(self, micro_batches: Sequence[Batch], step: int) -> StepResult:
        torch.manual_seed(step_seed(self._seed, step, self._ranks.rank))
        agreed = time.perf_counter()
        trained, padded = self._ranks.sum(
            [
                sum(trained_tokens(batch) for batch in micro_batches),
                sum(
                    int((batch["attention_mask"] == 0).sum())
                    for batch in micro_batches
                    if "attention_mask" in batch
                ),
            ]
        )
        agree_s = time.perf_counter() - agreed
        forward_s = backward_s = 0.0
        shares: list[Tensor] = []
        for number, batch in enumerate(micro_batches, start=1):
            with self._engine.accumulating(last=number == len(micro_batches)):
                began = time.perf_counter()
                with autocast(self._precision, self._ranks.device):
                    logits = self._engine(batch["input_ids"], batch["position_ids"])
                share = summed_loss(logits, batch["labels"]) / max(trained, 1)
                shares.append(share.detach())
                forwarded = time.perf_counter()
                (share * self._engine.scale()).backward()  # type: ignore[no-untyped-call]  # torch ships it unannotated
                forward_s += forwarded - began
                backward_s += time.perf_counter() - forwarded
        comms = self._engine.comms()
        began = time.perf_counter()
        (loss,) = self._ranks.sum([float(torch.stack(shares).double().sum())])
        samples = self._samples(micro_batches)
        agree_s += time.perf_counter() - began
        began = time.perf_counter()
        grad_norm = float(nn.utils.clip_grad_norm_(self._trained, self._config.clip_norm or math.inf))
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrainingFailed(
                f"step {step + 1}: loss {loss}, gradient norm {grad_norm}: not finite. The weights were not "
                "updated, and no version was made of it. Lower optim.lr or look at this step's samples"
            )
        lr = learning_rate(self._config, step)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        phases = {
            "forward": forward_s,
            "backward": backward_s - comms.exposed_s,
            "exposed_comms": comms.exposed_s,
            "agreement": agree_s,
            "optimizer": time.perf_counter() - began,
        }
        return StepResult(loss, grad_norm, lr, int(trained), int(padded), samples, phases, comms)

    def _samples(self, micro_batches: Sequence[Batch]) -> list[int]:
        """The ids of the global batch in the order of their positions, as the ranks have seen them."""
        own = torch.stack([batch["sample_ids"] for batch in micro_batches]).cpu()
        by_rank_RMB = torch.stack(self._ranks.gather(own))
        ids: list[int] = by_rank_RMB.transpose(0, 1).flatten().tolist()
        return ids
