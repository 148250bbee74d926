"""Ranks in processes of their own, over gloo, for tests that kill one of them or let its disk fail.

A fork server imports torch once; each rank is a real process forked from it.
"""

from __future__ import annotations

import datetime
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from checkpoint import (
    Checkpointer,
    CheckpointError,
    NotStorable,
    StoreDamaged,
    StoreFull,
    StoreLocked,
    Tree,
    WrongState,
)
from checkpoint import capture as capturing
from checkpoint.disk import Disk
from checkpoint.group import Group
from checkpoint.peers import INTEGER, TEXT, Peers
from tests.checkpoint.disks import Failing, Watched, dying
from tests.checkpoint.states import Box, bits, clone

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE_S = 60
"""What a group waits for a rank that says nothing: far more than any test may take."""
CHUNK_BYTES = 64


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its job's result, or the error that the job raised; neither if it was killed."""

    result: object = None
    error: str = ""
    message: str = ""
    killed: bool = False


def run(
    size: int, job: Callable[Concatenate[dist.ProcessGroup, P], R], *args: P.args, **kwargs: P.kwargs
) -> Sequence[Ended]:
    """Run a job on `size` ranks; how each ended, and none later than seconds after a killed one."""
    context = multiprocessing.get_context("forkserver")
    # One list for all tests that fork: the server is started once, by whichever comes first.
    context.set_forkserver_preload(["trainer.__main__", "tests.trainer_process", "torch._dynamo"])
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_main, args=(f"{folder}/store", rank, size, theirs, job, args, kwargs)
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        begun = time.monotonic()
        try:
            ended = [_ended(pipe, process) for pipe, process in zip(pipes, processes, strict=True)]
            assert time.monotonic() - begun < PATIENCE_S / 4, "a rank waited for one that was gone"
            return ended
        finally:
            for process in processes:
                process.kill()
                process.join()
                process.close()


def _ended(pipe: Connection, process: BaseProcess) -> Ended:
    with pipe:
        if not pipe.poll(PATIENCE_S + 10):
            return Ended(message="it hangs")
        try:
            ended: Ended = pipe.recv()
        except EOFError:
            process.join()
            assert process.exitcode == -signal.SIGKILL, "a job failed: its traceback is on stderr"
            return Ended(killed=True)
        return ended


def _main(
    store: str,
    rank: int,
    size: int,
    pipe: Connection,
    job: Callable[Concatenate[dist.ProcessGroup, P], R],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    group = dist.new_group(timeout=datetime.timedelta(seconds=PATIENCE_S), backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    # Nobody may die before all are connected: that would be no test of ours.
    connected = dist.FileStore(f"{store}-connected", size)
    connected.set(str(rank), "")
    connected.wait([str(other) for other in range(size)])
    try:
        pipe.send(Ended(job(group, *args, **kwargs)))
    except CheckpointError as error:
        pipe.send(Ended(error=type(error).__name__, message=str(error)))
    dist.destroy_process_group()


def big_state() -> dict[str, Tree]:
    """Tensors of many sizes, two of them tied, in all 1.1 MiB."""
    generator = torch.Generator().manual_seed(5)
    tied = torch.rand(100, 100, generator=generator)
    return {
        **{f"layer.{index}": torch.rand(20_000 + 1000 * index, generator=generator) for index in range(11)},
        "tied": tied,
        "tied too": tied,
        "few": [torch.ones(3, dtype=torch.bfloat16), torch.zeros(0), 7, {"lr": 0.1}],
    }


def small_state(step: int) -> dict[str, Tree]:
    """A frozen tensor, one that changes in part and one that changes."""
    generator = torch.Generator().manual_seed(3)
    frozen, part = torch.rand(50, generator=generator), torch.rand(100, generator=generator)
    part[: 10 * step] += step
    return {"frozen": frozen, "part": part, "all": torch.full((60,), step + 0.5), "step": step}


@dataclass(frozen=True)
class Saves:
    """Of a rank: the version infos of its saves, the bytes it copied, and those its own disk wrote to packs."""

    infos: Sequence[object]
    pool_bytes: int
    written_bytes: Sequence[int]


class _Weighed(Watched):
    """Adds up what goes into packs."""

    written = 0

    def write(self, fd: int, views: Sequence[memoryview]) -> None:
        if ".pack" in self._open_names[fd]:
            self.written += sum(map(len, views))
        super().write(fd, views)


def save_three(group: dist.ProcessGroup, path: Path) -> Saves:
    """A state, the same again, and one with a tensor changed."""
    state = big_state()
    disk = _Weighed()
    infos, written = [], []
    with Checkpointer(path, 4096, group=group, disk=disk) as checkpointer:
        for step in (1, 2, 3):
            if step == 3:
                changed = state["layer.4"]
                assert isinstance(changed, torch.Tensor)
                changed.add_(1)
            checkpointer.save(step, {"a": state}, {"loss": float("nan"), "step": step})
            infos.append(checkpointer.wait())
            written.append(disk.written)
        assert checkpointer.latest() == 3
        return Saves(infos, checkpointer._pool.nbytes, written)


def save_more(group: dist.ProcessGroup, path: Path) -> tuple[int | None, bool, int, int]:
    """Restore the latest, save it again as it is, and once more with another tensor, so that the plan moves."""
    wanted = big_state()
    changed = wanted["layer.4"]
    assert isinstance(changed, torch.Tensor)
    changed.add_(1)
    box = Box(clone(wanted))
    for tensor in box.state.values():
        if isinstance(tensor, torch.Tensor):
            tensor.zero_()
    with Checkpointer(path, group=group, disk=Watched()) as checkpointer:
        latest = checkpointer.latest()
        restored = checkpointer.restore(None, {"a": box})
        equal = all(
            bits(one) == bits(other)
            for one, other in zip(box.state.values(), wanted.values(), strict=True)
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        )
        assert restored.info.version == latest
        checkpointer.save(8, {"a": box})
        same = checkpointer.wait()
        box.state["first"] = torch.arange(60_000, dtype=torch.int32)
        checkpointer.save(9, {"a": box})
        more = checkpointer.wait()
        assert same is not None
        assert more is not None
        return latest, equal, same.new_bytes, more.new_bytes


@dataclass(frozen=True)
class Fault:
    """What befalls one rank's disk: death after so many operations, or an error at one; at most one of them."""

    rank: int = 1
    die_after: int | None = None
    fail_at: int | None = None
    code: int = 0

    def disk(self, rank: int) -> Disk:
        if rank != self.rank:
            return Watched()
        if self.die_after is not None:
            return dying(self.die_after)
        return Failing(self.fail_at, self.code) if self.fail_at is not None else Watched()


@dataclass(frozen=True)
class Said:
    """What a rank's saves came to: versions acknowledged, steps whose save failed, and the errors."""

    acknowledged: Sequence[int] = ()
    failed: Mapping[int, tuple[str, str]] | None = None


def save_small(group: dist.ProcessGroup, path: Path, saves: int, fault: Fault) -> Said:
    """Save as often, whatever fails, until a rank is lost. A disk that fails does so in the second save."""
    disk = fault.disk(dist.get_rank(group))
    acknowledged: list[int] = []
    failed: dict[int, tuple[str, str]] = {}
    checkpointer = Checkpointer(path, CHUNK_BYTES, group=group, disk=disk)
    try:
        first = (checkpointer.latest() or 0) + 1
        for step in range(first, first + saves):
            if isinstance(disk, Failing):
                disk.armed = step == first + 1
            checkpointer.save(step, {"a": small_state(step)})
            try:
                info = checkpointer.wait()
            except CheckpointError as error:
                failed[step] = (type(error).__name__, str(error))
                if type(error).__name__ == "RankLost":
                    break
                continue
            assert info is not None
            acknowledged.append(info.version)
    finally:
        checkpointer.close()
    return Said(acknowledged, failed)


def open_only(group: dist.ProcessGroup, path: Path) -> None:
    Checkpointer(path, group=group).close()


def leave_early(group: dist.ProcessGroup, path: Path) -> None:
    """Save once all together; rank 1 then ends as a process does that failed elsewhere, the others save again."""
    with Checkpointer(path, group=group) as checkpointer:
        checkpointer.save(1, {"a": small_state(1)})
        checkpointer.wait()
        if dist.get_rank(group) != 1:
            checkpointer.save(2, {"a": small_state(2)})


def leave_out(group: dist.ProcessGroup, path: Path, kind: str) -> list[str]:
    """Save twice, the first time by a plan that is broken on rank 1."""
    split = capturing.split

    def broken(sizes: Sequence[int], ranks: int) -> list[list[int]]:
        shares = split(sizes, ranks)
        if kind == "left out":
            shares[1].pop()
        else:
            shares[1].append(shares[0][0])
        return shares

    errors = []
    with Checkpointer(path, CHUNK_BYTES, group=group) as checkpointer:
        if dist.get_rank(group) == 1:
            capturing.split = broken
        checkpointer.save(1, {"a": small_state(1)})
        try:
            checkpointer.wait()
        except CheckpointError as error:
            errors.append(f"{type(error).__name__}: {error}")
        assert checkpointer.latest() is None
        assert not list((path / "versions").iterdir())
        capturing.split = split
        checkpointer.save(2, {"a": small_state(2)})
        checkpointer.wait()
    return errors


def differ(group: dist.ProcessGroup, path: Path) -> list[str]:
    """Ranks whose states are not alike, or cannot be stored on one of them."""
    errors = []
    rank = dist.get_rank(group)
    odd: list[dict[str, Tree]] = [
        {"x": torch.zeros(3 + rank)},
        {"x": torch.zeros(3), **({"meta": torch.zeros(3, device="meta")} if rank == 1 else {})},
    ]
    with Checkpointer(path, group=group) as checkpointer:
        for state in odd:
            try:
                checkpointer.save(1, {"a": state})
                checkpointer.wait()
            except NotStorable as error:
                errors.append(f"NotStorable: {error}")
                checkpointer.wait()
            except CheckpointError as error:
                errors.append(f"{type(error).__name__}: {error}")
        checkpointer.save(2, {"a": {"x": torch.zeros(3)}})
        info = checkpointer.wait()
        assert info is not None
        assert info.version == 1
    return errors


def restore(group: dist.ProcessGroup, path: Path, allow_older: bool) -> tuple[int, str]:
    """Restore the latest small state; the step that came back, and the damage."""
    box = Box(small_state(9))
    with Checkpointer(path, group=group) as checkpointer:
        restored = checkpointer.restore(None, {"a": box}, allow_older=allow_older)
    assert box.state["step"] == restored.info.step
    return restored.info.step, str(restored.damaged)


class Unreadable(Disk):
    """Gives wrong bytes for one pack, on this rank alone."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._fds: set[int] = set()

    def open(self, path: Path) -> int:
        fd = super().open(path)
        (self._fds.add if path.name == self._name else self._fds.discard)(fd)
        return fd

    def read_into(self, fd: int, view: memoryview, offset: int) -> int:
        count = super().read_into(fd, view, offset)
        if fd in self._fds and count:
            view[0] ^= 1
        return count


def restore_unreadable(group: dist.ProcessGroup, path: Path, pack: str) -> tuple[int, str]:
    """As `restore`, going on from an older version; rank 1 alone cannot read a pack."""
    box = Box(small_state(9))
    disk = Unreadable(pack) if dist.get_rank(group) == 1 else Disk()
    with Checkpointer(path, group=group, disk=disk) as checkpointer:
        restored = checkpointer.restore(None, {"a": box}, allow_older=True)
        checkpointer.save(9, {"a": box})
        info = checkpointer.wait()
    assert info is not None
    assert info.parent == restored.info.version
    return restored.info.step, str(restored.damaged)


def talk(group: dist.ProcessGroup) -> Sequence[object]:
    """`conversation` over a group."""
    return conversation(Group(group))


def conversation(peers: Peers) -> list[object]:
    """All that peers can say, twice over; errors as class and text."""
    said: list[object] = []
    last = peers.size - 1

    def heard(call: Callable[[], object]) -> None:
        try:
            said.append(call())
        except (CheckpointError, ValueError) as error:
            said.append((type(error).__name__, str(error)))

    def fail(error: Exception, rank: int) -> Callable[[], int]:
        def act() -> int:
            if peers.rank == rank:
                raise error
            return peers.rank

        return act

    for _ in range(2):
        heard(lambda: peers.first("telling", lambda: 7 + peers.rank, INTEGER))
        heard(lambda: peers.first("failing", fail(StoreLocked("held by process 9", 9), 0), INTEGER))
        heard(lambda: list(peers.every("listing", lambda: f"rank {peers.rank}", TEXT)))
        heard(lambda: peers.every("filling", fail(StoreFull("no space left"), last), INTEGER))
        heard(lambda: peers.together("differing", fail(WrongState(3, ["x: here", "y: there"]), last)))
        heard(lambda: peers.together("damaging", fail(StoreDamaged("torn", version=2, tensor="x"), last)))
        heard(lambda: peers.together("erring", fail(ValueError("no such thing"), last)))
        heard(lambda: peers.together("acting", lambda: 10 * peers.rank))
        heard(lambda: peers.agree("the digest", lambda: "same"))
    return said


def out_of_step(group: dist.ProcessGroup) -> list[str]:
    """Ranks that make different calls fail, and go on."""
    peers = Group(group)
    said = []
    try:
        peers.together("saving" if peers.rank else "restoring", lambda: None)
    except CheckpointError as error:
        said.append(f"{type(error).__name__}: {error}")
    try:
        peers.agree("the digest", lambda: str(peers.rank))
    except CheckpointError as error:
        said.append(f"{type(error).__name__}: {error}")
    peers.together("going on", lambda: None)
    return said
