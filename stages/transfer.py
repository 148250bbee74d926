"""Transfer: where batches are collated into, and how they reach the device.

    assemble (worker threads)            consumer
    ring.take() ─► arrays of a block ─► split ─► transfer(batch) ─► tensors on the device
        ▲                                             │ copy on a side stream
        └────────── reused after the copy's event ────┘

Without CUDA the same path hands over plain tensors (or plain arrays): nothing is copied, and memory is reused only
once nobody holds a batch in it, so a consumer may keep a batch as long as it likes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from stages.collate import Arrays
from stages.reuse import Reused

if TYPE_CHECKING:
    import torch

B_co = TypeVar("B_co", covariant=True)
B = TypeVar("B")


class Slot(Protocol):
    """Memory for one block of batches."""

    def int64(self, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """An uninitialised array for column `name`."""
        ...


class Transfer(Protocol[B_co]):
    """One iteration's way from collated host arrays to what the consumer wants."""

    ahead: int
    """How many batches are sent before the first of them is handed over."""

    def take(self, index: int) -> Slot:
        """The slot for the `index`-th block. Called from worker threads; waits while the slot is in use."""
        ...

    def send(self, arrays: Arrays, slot: Slot, last: bool) -> B_co:
        """Start bringing a batch over, blocks in order; `last` says that it is the last batch of its slot."""
        ...

    def arrived(self) -> None:
        """The oldest batch sent is handed over now: what the consumer does from here on comes after its copy."""
        ...

    def close(self) -> None:
        """Release whoever waits in `take`."""
        ...


class ToNumpy:
    """Batches as numpy arrays; torch is not imported."""

    ahead = 0

    def __init__(self) -> None:
        self._memory = Reused()

    def take(self, index: int) -> Slot:
        return self._memory

    def send(self, arrays: Arrays, slot: Slot, last: bool) -> Arrays:
        return arrays

    def arrived(self) -> None:
        pass

    def close(self) -> None:
        pass


class ToHost:
    """Batches as CPU tensors that share memory with the collated arrays."""

    ahead = 0

    def __init__(self) -> None:
        import torch

        self._from_numpy = torch.from_numpy
        self._memory = Reused()

    def take(self, index: int) -> Slot:
        return self._memory

    def send(self, arrays: Arrays, slot: Slot, last: bool) -> dict[str, torch.Tensor]:
        return {name: self._from_numpy(array) for name, array in arrays.items()}

    def arrived(self) -> None:
        pass

    def close(self) -> None:
        pass


class PinnedSlot:
    """Pinned arrays, allocated once per column and shape, and the event of the last copy out of them."""

    def __init__(self) -> None:
        self._pinned: dict[str, torch.Tensor] = {}
        self.copied: torch.cuda.Event | None = None

    def int64(self, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
        import torch

        wanted = int(np.prod(shape))
        held = self._pinned.get(name)
        if held is None or held.numel() < wanted:
            held = self._pinned[name] = torch.empty(wanted, dtype=torch.int64, pin_memory=True)
        array: NDArray[np.int64] = held.numpy()[:wanted].reshape(shape)
        return array


class ToCuda:
    """Batches on a CUDA device: collated into a ring of pinned slots, copied on a side stream.

    A slot is filled again only after the event that follows its last copy. The current stream waits for a batch's copy
    when the batch is handed over, not when it is sent: kernels of the batch before it run beside the copy.
    """

    ahead = 1

    def __init__(self, device: torch.device, slots: int) -> None:
        import torch

        self._torch = torch
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch ships it unannotated
        self._slots = [PinnedSlot() for _ in range(slots)]
        self._flying: deque[tuple[torch.cuda.Event, list[torch.Tensor]]] = deque()
        self._released = 0
        self._changed = threading.Condition()
        self._closed = False

    def take(self, index: int) -> Slot:
        # By the block's index and not first come, first served: else later blocks could hold every slot while the
        # block that the consumer waits for has none.
        with self._changed:
            self._changed.wait_for(lambda: self._closed or index < self._released + len(self._slots))
            if self._closed:
                raise RuntimeError("the feed was closed while a batch was being assembled")
        slot = self._slots[index % len(self._slots)]
        if slot.copied is not None:
            slot.copied.synchronize()
        return slot

    def send(self, arrays: Arrays, slot: Slot, last: bool) -> dict[str, torch.Tensor]:
        assert isinstance(slot, PinnedSlot)
        torch = self._torch
        with torch.cuda.stream(self._stream):
            # Arrays of variable length (cu_seqlens) are not in the slot: from_numpy gives pageable memory there,
            # for which copy_ falls back to a synchronous copy.
            batch = {
                name: torch.from_numpy(array).to(self._device, non_blocking=True)
                for name, array in arrays.items()
            }
            event = torch.cuda.Event()
            event.record(self._stream)
        self._flying.append((event, list(batch.values())))
        if last:
            slot.copied = event
            with self._changed:
                self._released += 1
                self._changed.notify_all()
        return batch

    def arrived(self) -> None:
        event, tensors = self._flying.popleft()
        current = self._torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(
                current
            )  # else its memory could be given to a later copy while a kernel reads it

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Lookahead(Generic[B]):
    """Iterates over `sent` keeping `transfer.ahead` elements in flight before the one that is handed over."""

    def __init__(self, sent: Iterable[B], transfer: Transfer[object]) -> None:
        self._sent, self._transfer = iter(sent), transfer

    def __iter__(self) -> Iterator[B]:
        flying: deque[B] = deque()
        for element in self._sent:
            flying.append(element)
            if len(flying) > self._transfer.ahead:
                self._transfer.arrived()
                yield flying.popleft()
        while flying:
            self._transfer.arrived()
            yield flying.popleft()
