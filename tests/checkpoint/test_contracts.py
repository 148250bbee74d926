from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from checkpoint import Checkpointer, Part
from tests.checkpoint.states import Box
from tests.contracts.store import CheckpointerContract, PartContract


class TestLocalCheckpointer(CheckpointerContract):
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = tmp_path / "run" / "versions"

    def open(self) -> Checkpointer:
        return Checkpointer(self.path)


class TestModule(PartContract):
    def make(self) -> Part:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    def change(self, part: Part) -> None:
        assert isinstance(part, nn.Module)
        with torch.no_grad():
            for parameter in part.parameters():
                parameter.add_(1)
        part(torch.ones(3, 5))


class TestTiedModule(TestModule):
    def make(self) -> Part:
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5))
        module[2].weight = module[0].weight
        return module


class OptimizerContract(PartContract):
    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        raise NotImplementedError

    def make(self) -> Part:
        return self.optimizer([nn.Parameter(torch.ones(4, 20)), nn.Parameter(torch.ones(3))])

    def change(self, part: Part) -> None:
        assert isinstance(part, torch.optim.Optimizer)
        for group in part.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.full_like(parameter, 0.5)
            group["lr"] *= 0.5
        part.step()


class TestAdamW(OptimizerContract):
    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.1)


class TestFusedAdamW(OptimizerContract):
    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.1, fused=True)


class TestMomentum(OptimizerContract):
    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": [parameter]} for parameter in parameters]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


class TestBox(PartContract):
    def make(self) -> Part:
        return Box({"x": torch.arange(100), "n": [1, {"$": float("nan")}], 7: torch.zeros(())})  # type: ignore[dict-item]

    def change(self, part: Part) -> None:
        assert isinstance(part, Box)
        tensor, numbers = part.state["x"], part.state["n"]
        assert isinstance(tensor, torch.Tensor)
        assert isinstance(numbers, list)
        tensor.add_(1)
        numbers[0] += 1
