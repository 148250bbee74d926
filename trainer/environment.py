"""What a version remembers of the machine it was made on: an allow-list, nothing else of the environment."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence

import torch

from pipeline import JSON


def environment(device: torch.device, world_size: int) -> dict[str, JSON]:
    """What sums depend on, as plain data."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "world_size": world_size,
    }


def differing(saved: Mapping[str, JSON], now: Mapping[str, JSON]) -> Sequence[str]:
    """Where the bits of a resumed run may differ from an uninterrupted one."""
    return [
        f"{key}: {saved.get(key)} then, {now.get(key)} now"
        for key in sorted(saved.keys() | now.keys())
        if saved.get(key) != now.get(key)
    ]
