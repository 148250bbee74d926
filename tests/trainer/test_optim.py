"""Schedule, optimizer state by name, freezing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from checkpoint import TensorSpec
from trainer.errors import ConfigError
from trainer.freeze import FreezeConfig, freeze
from trainer.optim import NamedOptimizer, OptimConfig, adamw, learning_rate


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def one_update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_the_schedule_warms_up_then_falls_to_its_floor() -> None:
    config = OptimConfig(lr=1.0, warmup_steps=4, decay_steps=14, min_lr_ratio=0.1)
    assert [learning_rate(config, s) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert learning_rate(config, 9) == pytest.approx(0.1 + 0.9 * 0.5)
    assert learning_rate(config, 14) == pytest.approx(0.1)
    assert learning_rate(config, 10**6) == pytest.approx(0.1)


@given(st.integers(0, 50), st.integers(1, 100), st.floats(0, 1), st.integers(0, 200))
def test_the_schedule_stays_between_floor_and_peak(warmup: int, decay: int, ratio: float, step: int) -> None:
    lr = learning_rate(OptimConfig(lr=0.5, warmup_steps=warmup, decay_steps=decay, min_lr_ratio=ratio), step)
    assert 0 <= lr <= 0.5
    assert math.isfinite(lr)


def test_state_made_beforehand_updates_like_state_that_torch_makes() -> None:
    ours, theirs = small(), small()
    named = NamedOptimizer(adamw(ours, OptimConfig()), ours)
    plain = adamw(theirs, OptimConfig())
    for _ in range(3):
        one_update(ours, named.optimizer)
        one_update(theirs, plain)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_state_is_keyed_by_parameter_name() -> None:
    model = small()
    state = NamedOptimizer(adamw(model, OptimConfig()), model).state_dict()
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    assert set(state["exp_avg"]) == {name for name, _ in model.named_parameters()}  # type: ignore[arg-type]


def test_only_matrices_decay() -> None:
    groups = adamw(small(), OptimConfig(weight_decay=0.3)).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(2, 0.3), (4, 0.0)]


def test_frozen_parameters_do_not_move_and_have_no_state() -> None:
    model = small()
    optimizer = adamw(model, OptimConfig(weight_decay=0.5))
    trained = freeze(model, FreezeConfig(patterns=("*",), unless=("2.*",)))
    named = NamedOptimizer(optimizer, model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        one_update(model, optimizer)
    moved = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert moved == trained == ["2.weight", "2.bias"]
    assert set(named.state_dict()["step"]) == set(trained)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FreezeConfig(patterns=("blocks.9.*",)), "'blocks.9.\\*' matches no parameter"),
        (FreezeConfig(patterns=("*",), unless=("nope",)), "'nope' matches no parameter"),
        (FreezeConfig(patterns=("*",)), "nothing is left to train"),
    ],
)
def test_freezing_that_cannot_be_meant_is_refused(config: FreezeConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        freeze(small(), config)


def test_every_difference_of_a_stored_state_is_listed() -> None:
    model = small()
    named = NamedOptimizer(adamw(model, OptimConfig()), model)
    stored = {
        "exp_avg/0.weight": TensorSpec("float32", (8, 5)),
        "step/gone": TensorSpec("float32", ()),
        "momentum/0.bias": TensorSpec("float32", (8,)),
    }
    found = named.differences(stored)
    assert any("exp_avg/0.weight: saved shape [8, 5], now [8, 4]" in f for f in found)
    assert any("no parameter 'gone'" in f for f in found)
    assert any("AdamW keeps no 'momentum'" in f for f in found)
    assert any(f.startswith("step/0.weight: missing") for f in found)
