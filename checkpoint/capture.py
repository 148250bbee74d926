"""Copying state aside: everything that a rank will store of a version, at one moment, into reused host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from checkpoint.errors import NotStorable
from checkpoint.peers import SOLO, Peers
from checkpoint.plan import split
from checkpoint.strict import JSON
from checkpoint.tensors import ITEM_BYTES, TensorSpec
from checkpoint.tree import PART_NAME, Part, Tree, to_json

if TYPE_CHECKING:
    import torch

# Every element type may begin there, and so may vector instructions.
_ALIGNMENT = 64
_GROWTH_BYTES = 1 << 20

# A tensor's memory as seen by its elements; equal keys are tied tensors.
MemoryKey: TypeAlias = (
    "tuple[str, int, int | torch.SymInt, tuple[int, ...], tuple[int, ...], torch.dtype, bool, bool]"
)


@dataclass(frozen=True, slots=True)
class CapturedTensor:
    """A tensor's copy: its index and name (of tied ones the first), what it is, and its bytes in row-major order."""

    index: int
    name: str
    spec: TensorSpec
    data: memoryview


@dataclass(frozen=True)
class Captured:
    """A copy of parts, valid until the pool is used again.

    Attributes:
        tensors: copies of this rank's share.
        names: of all tensors, by index; of tied ones the first.
        specs: of all tensors, by index.
        tree: each part's JSON.
    """

    tensors: Sequence[CapturedTensor]
    names: Sequence[str]
    specs: Sequence[TensorSpec]
    tree: Mapping[str, JSON]


class Pool:
    """Host memory for one copy, kept from save to save; pinned where there is CUDA."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else self._memory.numel()

    def take(self, size: int) -> torch.Tensor:
        """At least `size` bytes as a uint8 tensor. What was taken before is overwritten."""
        import torch

        if self._memory is None or self._memory.numel() < size:
            self._memory = None  # freed first, so that old and new are never held together
            rounded = -(-max(size, 1) // _GROWTH_BYTES) * _GROWTH_BYTES
            self._memory = torch.empty(rounded, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        return self._memory


class Walked:
    """The live tensors of parts: found by name, tied ones once.

    Raises:
        NotStorable: something in a part cannot be stored; named by its path.
    """

    def __init__(self, parts: Mapping[str, Part | Mapping[str, Tree]]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self.specs: list[TensorSpec] = []
        self.by_name: dict[str, int] = {}
        self._indices: dict[MemoryKey, int] = {}
        self.tree: dict[str, JSON] = {}
        for name, part in parts.items():
            if not PART_NAME.fullmatch(name):
                raise NotStorable(
                    f"{name!r} cannot name a part: letters, digits, '.', '_' and '-', at most 100"
                )
            state: object = part if isinstance(part, Mapping) else part.state_dict()
            if not isinstance(state, Mapping):
                raise NotStorable(f"{name}: state_dict() gave a {type(state).__qualname__}, not a mapping")
            self.tree[name] = to_json(state, name, self._visit)

    def _visit(self, name: str, value: object) -> int | None:
        import torch

        if not isinstance(value, torch.Tensor):
            return None
        spec = _spec(name, value)
        index = len(self.tensors)
        if value.numel():
            index = self._indices.setdefault(memory_key(value), index)
        if index == len(self.tensors):
            self.tensors.append(value.detach())
            self.names.append(name)
            self.specs.append(spec)
        self.by_name[name] = index
        return index


def memory_key(tensor: torch.Tensor) -> MemoryKey:
    return (
        str(tensor.device),
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    """What a tensor is. Raises NotStorable unless it is a plain one."""
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        kind = f"a {type(tensor).__module__}.{type(tensor).__qualname__}"
    elif tensor.is_nested:
        kind = "a nested tensor"
    elif tensor.layout != torch.strided:
        kind = f"a sparse tensor ({tensor.layout})"
    elif tensor.is_quantized:
        kind = f"a quantised tensor ({tensor.dtype})"
    elif tensor.is_meta:
        kind = "a meta tensor, which has no values"
    else:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype in ITEM_BYTES:
            return TensorSpec(dtype, tuple(tensor.shape))
        kind = f"a tensor of {dtype}"
    raise NotStorable(f"{name}: {kind} is not stored: let state_dict() give its contents as plain tensors")


def capture(parts: Mapping[str, Part | Mapping[str, Tree]], pool: Pool, peers: Peers = SOLO) -> Captured:
    """Copy this rank's share of the parts' tensors into the pool. When it returns, the parts may change.

    Raises:
        NotStorable: before anything is copied.
    """
    walked = Walked(parts)
    share = split([spec.nbytes for spec in walked.specs], peers.size)[peers.rank]
    offsets: list[int] = []
    end = 0
    for index in share:
        offsets.append(end)
        end += -(-walked.specs[index].nbytes // _ALIGNMENT) * _ALIGNMENT
    memory = pool.take(end)
    sources = [walked.tensors[index] for index in share]
    targets = [
        memory[offset : offset + walked.specs[index].nbytes].view(source.dtype).view(source.shape)
        for source, index, offset in zip(sources, share, offsets, strict=True)
    ]
    _copy(targets, sources)
    view = memory.numpy().data
    copies = [
        CapturedTensor(index, walked.names[index], spec, view[offset : offset + spec.nbytes])
        for index, offset in zip(share, offsets, strict=True)
        for spec in (walked.specs[index],)
    ]
    return Captured(copies, walked.names, walked.specs, walked.tree)


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy, and return when all is copied. CUDA copies run on a side stream after what is queued on the current one."""
    import torch

    by_device: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            if source.is_cuda:
                by_device.setdefault(source.device, []).append((target, source))
            else:
                target.copy_(source)
        streams: list[torch.Stream] = []
        for device, pairs in by_device.items():
            stream = torch.Stream(device)
            stream.wait_stream(torch.accelerator.current_stream(device))
            with stream:
                for target, source in pairs:
                    target.copy_(source, non_blocking=True)
            streams.append(stream)
        for stream in streams:
            stream.synchronize()
