"""One optimizer step in plain torch, on one device."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.errors import TrainingFailed
from trainer.loop import Batch, StepResult
from trainer.optim import OptimConfig, learning_rate


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
    """Cross entropy summed over trained tokens. Labels are unshifted: position t is predicted from t - 1."""
    return F.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=-100, reduction="sum"
    )


class TorchStep:
    """Forward and backward over the micro batches, one clipped AdamW update.

    The loss is normalised by the step's trained tokens over all micro batches, so that accumulation does not
    change it (a mean of means would weight tokens by how full their micro batch is).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: OptimConfig,
        *,
        seed: int,
        rank: int = 0,
    ) -> None:
        self._model, self._optimizer, self._config = model, optimizer, config
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._seed, self._rank = seed, rank

    def __call__(self, micro_batches: Sequence[Batch], step: int) -> StepResult:
        torch.manual_seed(step_seed(self._seed, step, self._rank))
        trained = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in micro_batches)
        padded = sum(
            int((batch["attention_mask"] == 0).sum()) for batch in micro_batches if "attention_mask" in batch
        )
        lr = learning_rate(self._config, step)
        forward_s = backward_s = 0.0
        loss = 0.0
        for batch in micro_batches:
            began = time.perf_counter()
            logits = self._model(batch["input_ids"], batch["position_ids"])
            share = summed_loss(logits, batch["labels"]) / max(trained, 1)
            loss += share.item()
            forwarded = time.perf_counter()
            share.backward()  # type: ignore[no-untyped-call]  # torch ships it unannotated
            forward_s += forwarded - began
            backward_s += time.perf_counter() - forwarded
        began = time.perf_counter()
        max_norm = self._config.clip_norm or math.inf
        grad_norm = float(nn.utils.clip_grad_norm_(self._trained, max_norm))
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrainingFailed(
                f"step {step + 1}: loss {loss}, gradient norm {grad_norm}: not finite. The weights were not updated; "
                "the last version is from before. Lower optim.lr or look at this step's samples"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        phases = {"forward": forward_s, "backward": backward_s, "optimizer": time.perf_counter() - began}
        samples = [int(s) for batch in micro_batches for s in batch["sample_ids"]]
        return StepResult(loss, grad_norm, lr, trained, padded, samples, phases)
