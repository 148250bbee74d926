"""How a model computes a step: on one device, or on every rank at once with its gradients summed behind the backward.

The loss that an engine backpropagates is the rank's share of the global mean: its summed loss over the trained tokens
of all ranks. Engines see to it that gradients come out as the sum of the shares.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.ranks import Launched
from trainer.section import Section

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class CommsConfig(Section):
    """[comms]: how gradients travel between ranks."""

    bucket_mb: float = Field(default=25.0, gt=0)
    """Gradients reduced in one message. Smaller buckets start earlier and cost more messages; the order of sums, and so
    the last bits, depend on it."""


@dataclass(frozen=True, slots=True)
class Comms:
    """What one step's reductions took, in seconds."""

    total_s: float = 0.0
    """With at least one reduction under way."""
    exposed_s: float = 0.0
    """Of that, after the last gradient was ready: what backward could not hide."""
    bytes: int = 0
    """Of gradients reduced, before any protocol's overhead."""


NO_COMMS = Comms()


class Engine(Protocol):
    def __call__(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        ...

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro batch: gradients travel with the `last` one only."""
        ...

    def scale(self) -> float:
        """What a rank's share of the loss is multiplied with, so that gradients sum over ranks."""
        ...

    def settle(self, input_ids: Tensor, position_ids: Tensor) -> None:
        """Bring the engine into the state in which every further backward sums in the same order."""
        ...

    def comms(self) -> Comms:
        """Of the backward just done."""
        ...


class Single:
    """One device."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return logits(self._model(input_ids=input_ids, position_ids=position_ids))

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def scale(self) -> float:
        return 1.0

    def settle(self, input_ids: Tensor, position_ids: Tensor) -> None:
        pass

    def comms(self) -> Comms:
        return NO_COMMS


class DataParallel:
    """torch's DistributedDataParallel, its reductions timed.

    DDP rebuilds its buckets after the first backward of a process, in the order in which gradients came: the first
    step would sum in another order than the same step of an uninterrupted run. So `settle` does one backward that is
    thrown away, at every start.
    """

    def __init__(self, model: nn.Module, ranks: Launched, config: CommsConfig) -> None:
        on_gpu = ranks.device.type == "cuda"
        self._model = DistributedDataParallel(
            model,
            device_ids=[ranks.device.index] if on_gpu else None,
            bucket_cap_mb=config.bucket_mb,
            gradient_as_bucket_view=True,
            # Buffers here are tables that every rank computes alike (rotary frequencies).
            forward_sync_buffers=False,
        )
        self._size = ranks.size
        self._timer = CudaTimer(ranks.device) if on_gpu else CpuTimer()
        self._model.register_comm_hook(self._timer, timed_all_reduce)

    def __call__(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return logits(self._model(input_ids=input_ids, position_ids=position_ids))

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        if last:
            self._timer.begin()
            return nullcontext()
        quiet: AbstractContextManager[None] = self._model.no_sync()
        return quiet

    def scale(self) -> float:
        return float(self._size)  # DDP averages over ranks

    def settle(self, input_ids: Tensor, position_ids: Tensor) -> None:
        self(input_ids, position_ids).float().square().mean().backward()  # type: ignore[no-untyped-call]
        self._model.zero_grad(set_to_none=True)

    def comms(self) -> Comms:
        return self._timer.end()


def logits(output: object) -> Tensor:
    """Of a model of ours, which returns them, or of one of the ecosystem, which returns a record."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    assert isinstance(found, Tensor), f"a model's output is a tensor or has logits, got {type(output)}"
    return found


def timed_all_reduce(timer: Timer, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's own reduction (divide, then sum), with its beginning and end noted. DDP wants the name `bucket`."""
    gradients = bucket.buffer()
    timer.launched(gradients.numel() * gradients.element_size())
    gradients.div_(dist.get_world_size())
    reduced = dist.all_reduce(gradients, async_op=True)
    assert reduced is not None

    def arrived(future: torch.futures.Future[list[Tensor]]) -> Tensor:
        timer.landed()
        return future.value()[0]

    landed: torch.futures.Future[Tensor] = reduced.get_future().then(arrived)
    return landed


# DDP holds the annotation of `bucket` against the class itself, and ours is a string.
timed_all_reduce.__annotations__.clear()


class Timer(Protocol):
    def begin(self) -> None: ...
    def launched(self, size: int) -> None: ...
    def landed(self) -> None: ...
    def end(self) -> Comms: ...


class CpuTimer:
    """By the clock: gloo reduces in threads of its own."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._bytes = 0

    def launched(self, size: int) -> None:
        self._starts.append(time.perf_counter())
        self._bytes += size

    def landed(self) -> None:
        self._ends.append(time.perf_counter())

    def end(self) -> Comms:
        return measured(self._starts, self._ends, self._bytes)


class CudaTimer:
    """By events: reductions run on a stream of NCCL's, and the host is long past them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.begin()

    def begin(self) -> None:
        self._zero = self._mark()
        self._starts: list[torch.cuda.Event] = []
        self._ends: list[torch.cuda.Event] = []
        self._bytes = 0

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch ships it unannotated
        event.record(torch.cuda.current_stream(self._device))
        return event

    def launched(self, size: int) -> None:
        self._starts.append(self._mark())
        self._bytes += size

    def landed(self) -> None:
        # In a callback of a CUDA future the current stream is one that waits for the reduction.
        self._ends.append(self._mark())

    def end(self) -> Comms:
        torch.cuda.synchronize(self._device)
        at = [
            [self._zero.elapsed_time(event) / 1e3 for event in events]
            for events in (self._starts, self._ends)
        ]
        return measured(at[0], at[1], self._bytes)


def measured(starts: Sequence[float], ends: Sequence[float], size: int) -> Comms:
    """From when each reduction was launched and landed, in seconds: the time with any under way, and the part of it
    after the last launch, when the last gradient was ready and backward had nothing left to hide it behind."""
    if not starts:
        return NO_COMMS
    total, until = 0.0, float("-inf")
    for start, end in sorted(zip(starts, sorted(ends), strict=True)):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return Comms(total, max(max(ends) - max(starts), 0.0), size)
