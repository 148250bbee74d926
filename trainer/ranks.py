"""The ranks of a run: who this process is, and the few words that ranks exchange outside of the gradients.

A run of one process is `Alone`: the same calls, no collective behind them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from trainer.entry import report
from trainer.errors import ConfigError


class Ranks(Protocol):
    """Every method is a collective: all ranks call it, in the same order."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        ...

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element by element over all ranks, in float64: exact for counts below 2^53."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether any rank says so; all ranks get the same answer."""
        ...

    def gather(self, values: Tensor) -> list[Tensor]:
        """Each rank's CPU tensor, in rank order; all have one shape and type."""
        ...

    def failed(self, error: Exception) -> None:
        """What a rank does with an error that ends the run. No collective: the others may be gone."""
        ...

    @property
    def versions(self) -> dist.ProcessGroup | None:
        """A group for the version store alone, whose thread talks while the others train; None for one process."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """One process."""

    device: torch.device
    rank: int = 0
    size: int = 1
    versions: None = None

    def sum(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def any(self, flag: bool) -> bool:
        return flag

    def gather(self, values: Tensor) -> list[Tensor]:
        return [values]

    def failed(self, error: Exception) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Launched:
    """One of several processes. Words go over a gloo group of their own, so that they never queue behind gradients."""

    device: torch.device
    rank: int
    size: int
    words: dist.ProcessGroup
    versions: dist.ProcessGroup

    def sum(self, values: Sequence[float]) -> list[float]:
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.words)
        summed: list[float] = total.tolist()
        return summed

    def any(self, flag: bool) -> bool:
        return self.sum([float(flag)])[0] > 0

    def gather(self, values: Tensor) -> list[Tensor]:
        everyones = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(everyones, values, group=self.words)
        return everyones

    def failed(self, error: Exception) -> NoReturn:
        """Tell the error and end the process here and now, its sockets with it, so that the other ranks notice.

        Unwinding would wait for ranks that are gone (a save in flight), and where a reduction has failed, torch can
        hang for ever while the objects of the failed backward are destroyed.
        """
        code = report(error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def launched(environment: Mapping[str, str], device: str) -> Iterator[Alone | Launched]:
    """The ranks that a launcher (torchrun, deepspeed) has started, by its variables; `Alone` where there is none.

    `device` is "auto", "cpu" or "cuda". The process group ends with the block.
    """
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    where = _device(device, local_rank)
    size = int(environment.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Alone(where)
        return
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in environment]:
        raise ConfigError(
            f"WORLD_SIZE is {size}, but {', '.join(missing)} not set: start the ranks with torchrun"
        )
    if where.type == "cuda":
        torch.cuda.set_device(where)
    backend = "nccl" if where.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=_store(environment, size), rank=int(environment["RANK"]), world_size=size
    )
    words, versions = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
    ranks = Launched(where, dist.get_rank(), size, words, versions)
    try:
        yield ranks
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must notice
        ranks.failed(error)
    dist.destroy_process_group()


def _store(environment: Mapping[str, str], size: int) -> Store:
    """Where ranks find each other.

    torchrun keeps one store over its restarts: a rank that starts again could read the address that a dead one left
    there. So each start has names of its own; on several nodes launchers count restarts apart, and it is left to them.
    """
    store: Store
    store, _, _ = next(rendezvous("env://", int(environment["RANK"]), size))
    if environment.get("LOCAL_WORLD_SIZE", str(size)) != str(size):
        return store
    return PrefixStore(f"start-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _device(device: str, local_rank: int) -> torch.device:
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError("run.device is cuda, but torch sees no CUDA device; set it to auto or cpu")
    if device == "cpu" or not available:
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {local_rank} has no GPU of its own: there are {torch.cuda.device_count()}"
        )
    return torch.device("cuda", local_rank)
