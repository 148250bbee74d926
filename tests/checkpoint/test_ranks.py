"""Several ranks make one version: work is shared, all learn the same, no death or full disk leaves half a version."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import Checkpointer, Store, VersionInfo
from checkpoint.capture import Walked
from checkpoint.peers import Solo
from checkpoint.plan import split
from tests.checkpoint import ranks
from tests.checkpoint.disks import Watched
from tests.checkpoint.ranks import Ended, Fault, Said, Saves, run
from tests.checkpoint.states import Box, all_whole, same, taken

PACK_OVERHEAD = 8 + 64
SEED = int(os.environ.get("SEED", "0"))


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 8))
def test_a_plan_gives_each_tensor_to_one_rank_and_none_much_more_than_another(
    sizes: list[int], count: int
) -> None:
    shares = split(sizes, count)
    assert len(shares) == count
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    assert all(share == sorted(share) for share in shares)
    loads = [sum(sizes[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_a_plan_is_the_same_everywhere() -> None:
    assert split([5, 5, 5, 1, 0, 9], 2) == [[2, 5], [0, 1, 3, 4]]
    assert split([3, 0, 4], 1) == [[0, 1, 2]]


def saves_of(ended: Sequence[Ended]) -> list[Saves]:
    found = []
    for rank in ended:
        assert isinstance(rank.result, Saves), rank
        found.append(rank.result)
    return found


@pytest.mark.parametrize("count", [2, 3])
def test_the_work_is_shared_and_the_content_a_single_process_s(tmp_path: Path, count: int) -> None:
    path = tmp_path / "many"
    many = saves_of(run(count, ranks.save_three, path))
    (one,) = saves_of(run(1, ranks.save_three, tmp_path / "one"))
    store, single = Store(path), Store(tmp_path / "one")
    assert all_whole(path) == [1, 2, 3]
    for version in (1, 2, 3):
        assert store.digest(version, ["a"]) == single.digest(version, ["a"])
        assert store.read(version)[1].tree == single.read(version)[1].tree

    assert all([*map(repr, saves.infos)] == [*map(repr, many[0].infos)] for saves in many)
    infos = [info for info in many[0].infos if isinstance(info, VersionInfo)]
    alone = [info for info in one.infos if isinstance(info, VersionInfo)]
    assert list(map(repr, store.list())) == list(map(repr, infos))
    assert [info.total_bytes for info in infos] == [info.total_bytes for info in alone]
    assert [info.new_bytes - alone[0].new_bytes for info in infos[:1]] == [(count - 1) * PACK_OVERHEAD]
    assert infos[1].new_bytes == 0
    assert infos[2].new_bytes == alone[2].new_bytes

    written = [saves.written_bytes for saves in many]
    assert sum(rank[0] for rank in written) == infos[0].new_bytes
    assert all(rank[0] == rank[1] for rank in written)
    assert sorted(rank[2] - rank[1] for rank in written) == [0] * (count - 1) + [infos[2].new_bytes]
    largest = max(spec.nbytes for spec in Walked({"a": ranks.big_state()}).specs)
    for rank in written:
        assert abs(rank[0] - infos[0].new_bytes / count) <= largest
    assert len({name[:32] for name in store.read(1)[1].packs}) == count
    # What a rank copies is its share too, up to what the pool grows by.
    assert all(saves.pool_bytes <= 1 << 20 for saves in many)
    assert one.pool_bytes > 1 << 20


def test_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "v"
    run(3, ranks.save_three, path)
    head = 3
    for count in (1, 2, 3):
        added = 60_000 * 4
        for ended in run(count, ranks.save_more, path):
            assert isinstance(ended.result, tuple), ended
            latest, equal, same_bytes, more_bytes = ended.result
            assert latest == head
            assert equal
            assert same_bytes == 0
            # The new tensor moves others to other ranks: they are known there too.
            assert added < more_bytes < added + 10_000
        head += 2
        with Checkpointer(path, disk=Watched()) as checkpointer:
            box = Box(ranks.big_state())
            changed = box.state["layer.4"]
            assert isinstance(changed, torch.Tensor)
            changed.add_(1)
            checkpointer.save(1, {"a": box})
            checkpointer.wait()
        head += 1


def said(ended: Ended) -> Said:
    assert isinstance(ended.result, Said), ended
    return ended.result


def check_survivors(path: Path, least: int, most: int) -> None:
    """Every version is whole and as it was saved, none acknowledged is missing, and the next run goes on."""
    versions = all_whole(path) if (path / "FORMAT").exists() else []
    assert versions == list(range(1, len(versions) + 1))
    assert least <= len(versions) <= most
    with Checkpointer(path, ranks.CHUNK_BYTES, disk=Watched()) as checkpointer:
        for version in versions:
            info = Store(path).info(version)
            assert same(taken(checkpointer, version, "a")["a"], ranks.small_state(info.step))
        checkpointer.save(9, {"a": ranks.small_state(9)})
        assert checkpointer.wait() is not None
        assert not [file for file in path.rglob("*") if file.name.endswith(".tmp")]
        assert not list((path / "intents").iterdir())
        assert same(taken(checkpointer, None, "a")["a"], ranks.small_state(9))


def kill(path: Path, count: int, victim: int, die_after: int) -> bool:
    """Kill a rank in its two saves; whether it died."""
    ended = run(count, ranks.save_small, path, 2, Fault(victim, die_after=die_after))
    if not ended[victim].killed:
        assert all(said(rank).acknowledged == [1, 2] for rank in ended)
        return False
    acknowledged = 0
    for rank, end in enumerate(ended):
        if rank == victim:
            continue
        if end.error:
            # It was never opened by all.
            assert end.error == "RankLost", end
            continue
        saves = said(end)
        acknowledged = max(acknowledged, len(saves.acknowledged))
        # Who died after its last word has done its part.
        assert saves.acknowledged == [1, 2] or [kind for kind, _ in (saves.failed or {}).values()] == [
            "RankLost"
        ]
        assert all(f"rank {victim}" in message for _, message in (saves.failed or {}).values())
    check_survivors(path, acknowledged, acknowledged + 1)
    return True


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_after_some_operations(tmp_path: Path, victim: int) -> None:
    draw = random.Random(SEED + victim)
    for number, die_after in enumerate(draw.sample(range(1, 24), 3)):
        kill(tmp_path / str(number), 3, victim, die_after)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_after_every_operation(tmp_path: Path, victim: int, count: int) -> None:
    die_after = 1
    while kill(tmp_path / str(die_after), count, victim, die_after):
        die_after += 1
    assert die_after > 20


def fail(path: Path, victim: int, fail_at: int) -> bool:
    """Fail one operation of a rank's second save; whether one failed."""
    ended = run(2, ranks.save_small, path, 3, Fault(victim, fail_at=fail_at, code=errno.ENOSPC))
    results = [said(rank) for rank in ended]
    if not results[0].failed:
        assert all(result.acknowledged == [1, 2, 3] for result in results)
        return False
    for rank, result in enumerate(results):
        assert result.failed is not None
        assert [*result.failed] == [2]
        kind, message = result.failed[2]
        assert kind == "StoreFull"
        assert "no space left" in message
        assert rank == victim or message.startswith(f"rank {victim}: ")
    store = Store(path)
    assert results[0].acknowledged == results[1].acknowledged
    steps = [store.verify(version).step for version in store.versions()]
    # A version whose very last sync failed is there all the same; it was not acknowledged.
    assert steps in ([1, 3], [1, 2, 3])
    referred = {pack for version in store.versions() for pack in store.read(version)[1].packs}
    assert {file.stem for file in (path / "packs").iterdir()} == referred
    assert not list((path / "intents").iterdir())
    assert not [file for file in path.rglob("*") if file.name.endswith(".tmp")]
    return True


@pytest.mark.parametrize(("victim", "operations"), [(0, 1), (1, 3)])
def test_a_full_disk_on_one_rank_fails_the_save_on_all_and_the_next_works(
    tmp_path: Path, victim: int, operations: int
) -> None:
    # Seven on any rank: an intent made and written, a pack made, written, synced and named, its folder synced.
    draw = random.Random(SEED + victim)
    for fail_at in draw.sample(range(7), operations):
        assert fail(tmp_path / str(fail_at), victim, fail_at)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_full_disk_at_every_operation(tmp_path: Path, victim: int) -> None:
    fail_at = 0
    while fail(tmp_path / str(fail_at), victim, fail_at):
        fail_at += 1
    assert fail_at > 6


def test_a_rank_that_ends_early_is_missed(tmp_path: Path) -> None:
    first, second, third = run(3, ranks.leave_early, tmp_path / "v")
    assert not second.error
    for ended in (first, third):
        assert ended.error == "RankLost"
        assert ended.message.startswith("rank 1: gone, or out of reach")
    assert all_whole(tmp_path / "v") == [1]


@pytest.mark.parametrize("kind", ["left out", "stored twice"])
def test_a_broken_plan_makes_no_version(tmp_path: Path, kind: str) -> None:
    for ended in run(2, ranks.leave_out, tmp_path / "v", kind):
        assert isinstance(ended.result, list), ended
        (message,) = ended.result
        assert message.startswith("RankFailed: ")
        assert "stored by" in message
    assert all_whole(tmp_path / "v") == [1]
    packs = {file.stem for file in (tmp_path / "v" / "packs").iterdir()}
    assert packs == set(Store(tmp_path / "v").read(1)[1].packs)


def test_states_that_differ_make_no_version(tmp_path: Path) -> None:
    first, second = run(2, ranks.differ, tmp_path / "v")
    for ended in (first, second):
        assert isinstance(ended.result, list), ended
        assert ended.result[0].startswith("RankFailed: ")
        assert "its state has other tensors" in ended.result[0]
    assert isinstance(first.result, list)
    assert isinstance(second.result, list)
    assert first.result[1].startswith("NotStorable: rank 1: a/meta: a meta tensor")
    assert second.result[1].startswith("NotStorable: a/meta: a meta tensor")


def test_a_second_job_is_refused_on_all_its_ranks(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "v"):
        for rank, ended in enumerate(run(3, ranks.open_only, tmp_path / "v")):
            assert ended.error == "StoreLocked"
            assert f"process {os.getpid()}" in ended.message
            assert ended.message.startswith("rank 0: ") == (rank > 0)
    assert all(not ended.error for ended in run(3, ranks.open_only, tmp_path / "v"))


def three_versions(path: Path) -> str:
    """Make a store of three versions; the pack that the last one alone refers to."""
    with Checkpointer(path, ranks.CHUNK_BYTES, disk=Watched()) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, {"a": ranks.small_state(step)})
    store = Store(path)
    (pack,) = set(store.read(3)[1].packs) - set(store.read(2)[1].packs)
    return f"{pack}.pack"


def test_damage_is_the_same_error_on_all_ranks_and_older_the_same_version(tmp_path: Path) -> None:
    path = tmp_path / "v"
    file = path / "packs" / three_versions(path)
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    for ended in run(2, ranks.restore, path, False):
        assert ended.error == "StoreDamaged"
        assert "The last good version is 2" in ended.message
    for ended in run(2, ranks.restore, path, True):
        assert isinstance(ended.result, tuple), ended
        assert ended.result[0] == 2
        assert ended.result[1].startswith("version 3, ")


def test_damage_that_one_rank_finds_takes_all_the_same_way(tmp_path: Path) -> None:
    pack = three_versions(tmp_path / "v")
    for rank, ended in enumerate(run(2, ranks.restore_unreadable, tmp_path / "v", pack)):
        assert isinstance(ended.result, tuple), ended
        assert ended.result[0] == 2
        assert f"pack {pack}" in ended.result[1] or pack.removesuffix(".pack") in ended.result[1]
        assert ("(found by rank 1)" in ended.result[1]) == (rank == 0)
    assert all_whole(tmp_path / "v") == [1, 2, 3, 4]


def expected(rank: int, size: int) -> list[object]:
    """What a conversation comes to on a rank."""
    first = "rank 0: " if rank else ""
    last = "" if rank == size - 1 else f"rank {size - 1}: "
    by_last = "" if rank == size - 1 else f" (found by rank {size - 1})"
    differences = f"  - {last}x: here\n  - {last}y: there"
    erring = (
        ("ValueError", "no such thing")
        if rank == size - 1
        else ("RankFailed", f"rank {size - 1}: ValueError: no such thing")
    )
    return [
        7,
        ("StoreLocked", f"{first}held by process 9"),
        [f"rank {other}" for other in range(size)],
        ("StoreFull", f"{last}no space left"),
        (
            "WrongState",
            "version 3 does not fit what it was to be restored into; nothing was changed. "
            f"2 differences:\n{differences}",
        ),
        ("StoreDamaged", f"version 2, tensor x is damaged: torn{by_last}"),
        erring,
        10 * rank,
        None,
    ] * 2


def test_one_process_is_its_own_peer() -> None:
    assert ranks.conversation(Solo()) == expected(0, 1)


@pytest.mark.parametrize("size", [1, 3])
def test_what_one_rank_says_all_hear(size: int) -> None:
    for rank, ended in enumerate(run(size, ranks.talk)):
        assert ended.result == expected(rank, size), ended


def test_ranks_that_are_out_of_step_fail_and_go_on() -> None:
    for ended in run(3, ranks.out_of_step):
        assert isinstance(ended.result, list), ended
        step, digests = ended.result
        assert "while rank" in step
        assert "the digest differ from rank 0's" in digests
