"""The optimizer, its schedule, and its state by parameter name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from trainer.section import Section

if TYPE_CHECKING:
    from checkpoint import TensorSpec, Tree

STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")


class OptimConfig(Section):
    """[optim]: AdamW with warm-up and cosine decay, clipping by global norm."""

    lr: float = Field(default=3e-4, gt=0)
    """Peak learning rate."""
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = Field(default=0, ge=0)
    decay_steps: int | None = Field(default=None, ge=1)
    """Step at which the cosine reaches its end; resolved to train.steps when a run begins. It stays when a run is
    prolonged: a longer train.steps alone must not bend the curve of the steps already taken."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Learning rate at the end of the decay, as a share of lr."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Applied to matrices, not to norms and biases."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Global gradient norm above which gradients are scaled down; 0 switches clipping off."""


def learning_rate(config: OptimConfig, step: int) -> float:
    """The rate of update `step` (from 0): linear warm-up, then cosine (Loshchilov & Hutter 2017)."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant" or config.decay_steps is None:
        return config.lr
    done = (step - config.warmup_steps) / max(config.decay_steps - config.warmup_steps, 1)
    cosine = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)


def adamw(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over all parameters of `model`, frozen ones included: a frozen one has no gradient and does not move."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    # fused, said outright: for-loop, foreach and fused give different bits, and torch's choice may change.
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


class NamedOptimizer:
    """An AdamW optimizer as a part of a version: state keyed by parameter name, never by index.

    State of a trainable parameter exists from the beginning (zeros, as torch would make it at the first update), so
    that every version has the same keys. A frozen parameter may have state (it was trained before) or none.
    """

    def __init__(self, optimizer: torch.optim.AdamW, model: nn.Module) -> None:
        self.optimizer = optimizer
        self._parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        for parameter in self._parameters.values():
            if parameter.requires_grad:
                self._materialise(parameter)

    def _materialise(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state

    def state_dict(self) -> Mapping[str, Tree]:
        held = {name: self.optimizer.state.get(parameter) for name, parameter in self._parameters.items()}
        return {key: {name: state[key] for name, state in held.items() if state} for key in STATE_KEYS}

    def differences(self, stored: Mapping[str, TensorSpec]) -> Sequence[str]:
        """What in `stored` (tensors by path, "exp_avg/NAME") is not this optimizer's."""
        found: list[str] = []
        for path, spec in stored.items():
            key, _, name = path.partition("/")
            parameter = self._parameters.get(name)
            if key not in STATE_KEYS:
                found.append(f"{path}: AdamW keeps no {key!r}")
            elif parameter is None:
                found.append(f"{path}: this model has no parameter {name!r}")
            elif spec.shape != (shape := () if key == "step" else tuple(parameter.shape)):
                found.append(f"{path}: saved shape {list(spec.shape)}, now {list(shape)}")
        names = {path.partition("/")[2] for path in stored}
        found += [
            f"{key}/{name}: missing, although its other state is there"
            for name in sorted(names & self._parameters.keys())
            for key in STATE_KEYS
            if f"{key}/{name}" not in stored
        ]
        return found

    def load_state_dict(self, state: Mapping[str, Tree]) -> None:
        """Take over tensors that did not exist here; those that did were loaded in place."""
        for key, by_name in state.items():
            assert isinstance(by_name, Mapping), f"{key} is {type(by_name)}"
            for name, tensor in by_name.items():
                parameter = self._parameters[name]
                assert isinstance(tensor, Tensor), f"{key}/{name} is {type(tensor)}"
                held = self.optimizer.state[parameter]
                if held.get(key) is not tensor:
                    held[key] = tensor.to(parameter.device)
