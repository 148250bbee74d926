from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from checkpoint import Checkpointer, NotStorable, Store, Tree, UnknownFormat, VersionInfo, WrongState
from checkpoint.capture import Pool
from checkpoint.tensors import ITEM_BYTES
from tests.checkpoint.disks import Watched
from tests.checkpoint.states import (
    Box,
    Taker,
    all_whole,
    bits,
    clone,
    dtype_of,
    pack_bytes,
    same,
    taken,
    trees,
)

few = settings(max_examples=40, deadline=None)


def saved(checkpointer: Checkpointer) -> VersionInfo:
    info = checkpointer.wait()
    assert info is not None
    return info


@few
@given(trees(), trees(), st.sampled_from([1, 7, 16, 1024]))
def test_trees_survive_bit_by_bit(one: dict[str, Tree], other: dict[str, Tree], chunk_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with Checkpointer(folder + "/v", chunk_bytes, disk=Watched()) as checkpointer:
            checkpointer.save(0, {"one": one, "other": other})
            found = taken(checkpointer, 1, "one", "other")
            assert same(found, {"one": one, "other": other})
            # Once more, from what the restore left as the parent.
            checkpointer.save(1, found)
            assert saved(checkpointer).new_bytes == 0
        with Checkpointer(folder + "/v") as checkpointer:
            assert same(taken(checkpointer, 2, "one", "other"), {"one": one, "other": other})


change = st.tuples(st.integers(0, 2), st.integers(0, 99), st.integers(0, 255))


@few
@given(st.lists(st.lists(change, max_size=3), min_size=1, max_size=6), st.booleans())
def test_every_version_of_a_sequence_restores_and_costs_what_changed(
    saves: list[list[tuple[int, int, int]]], reopen: bool
) -> None:
    chunk_bytes, overhead = 8, 56 + 32
    state: dict[str, Tree] = {str(name): torch.zeros(100, dtype=torch.uint8) for name in range(3)}
    wanted: list[Tree] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "v"
        checkpointer = Checkpointer(path, chunk_bytes, disk=Watched())
        for step, changes in enumerate(saves):
            touched = set()
            for name, at, value in changes:
                tensor = state[str(name)]
                assert isinstance(tensor, torch.Tensor)
                tensor[at] = value
                touched.add((name, at // chunk_bytes))
            checkpointer.save(step, {"part": state})
            info = saved(checkpointer)
            wanted.append(clone(state))
            if step:
                lists = len({name for name, _ in touched}) * 13 * 32
                assert info.new_bytes <= (72 + lists + len(touched) * (chunk_bytes + overhead + 56)) * bool(
                    touched
                )
            if reopen:
                checkpointer.close()
                checkpointer = Checkpointer(path, disk=Watched())
                checkpointer.restore(None, {"part": Box(state)})
        checkpointer.close()
        assert all_whole(path) == list(range(1, len(saves) + 1))
        with Checkpointer(path) as checkpointer:
            for version, state_then in enumerate(wanted, start=1):
                assert same(taken(checkpointer, version, "part")["part"], state_then)


def test_content_that_the_parent_holds_elsewhere_is_not_written_again(tmp_path: Path) -> None:
    x, y = torch.rand(1000), torch.rand(1000)
    with Checkpointer(tmp_path / "v", 256) as checkpointer:
        checkpointer.save(1, {"a": {"x": x, "y": y, "same as x": x.clone()}})
        assert saved(checkpointer).new_bytes < 2 * 4000 + 40 * (56 + 32) + 100
        checkpointer.save(2, {"a": {"x": y, "y": x, "z": x.view(torch.int32)}})
        assert saved(checkpointer).new_bytes == 0


def test_the_same_bytes_of_another_type_or_shape_are_another_tensor(tmp_path: Path) -> None:
    tensor = torch.rand(100)
    forms = (tensor, tensor.view(torch.int32), tensor.view(10, 10))
    with Checkpointer(tmp_path / "v", 64) as checkpointer:
        for step, form in enumerate(forms):
            checkpointer.save(step, {"a": {"x": form}})
        assert saved(checkpointer).new_bytes == 0
        for version, form in enumerate(forms, start=1):
            assert same(taken(checkpointer, version, "a")["a"]["x"], form)


def test_content_that_comes_back_is_found_again(tmp_path: Path) -> None:
    frozen, one, other = torch.rand(100), torch.rand(100), torch.rand(100)
    with Checkpointer(tmp_path / "v") as checkpointer:
        for step, tensor in enumerate((one, other, one)):
            checkpointer.save(step, {"a": {"frozen": frozen, "x": tensor}})
        assert saved(checkpointer).new_bytes == 0


@pytest.mark.parametrize("name", ITEM_BYTES)
def test_every_element_type_is_loaded_in_place(tmp_path: Path, name: str) -> None:
    raw = torch.randint(0, 2, (96,), dtype=torch.uint8)
    tensor = raw.view(dtype_of(name))
    state: dict[str, Tree] = {"x": tensor, "scalar": tensor[0].clone(), "none": tensor[:0]}
    wanted = clone(state)
    place = tensor.data_ptr()
    with Checkpointer(tmp_path / "v", 10) as checkpointer:
        checkpointer.save(1, {"a": state})
        raw.zero_()
        box = Box(state)
        checkpointer.restore(1, {"a": box})
    assert same(state, wanted)
    assert tensor.data_ptr() == place
    assert box.state["x"] is not None
    assert box.loads == 1


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(50, 50, bias=False), nn.Linear(50, 50, bias=False))
    module[1].weight = module[0].weight
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"model": module})
        info = saved(checkpointer)
        assert info.total_bytes == 50 * 50 * 4
        _, manifest = Store(tmp_path / "v").read(1)
        assert manifest.leaves("model") == {"model/0.weight": 0, "model/1.weight": 0}
        wanted = bits(module[0].weight)
        with torch.no_grad():
            module[0].weight.zero_()
        checkpointer.restore(1, {"model": module})
        assert bits(module[0].weight) == wanted
        assert module[0].weight is module[1].weight
        fresh = taken(checkpointer, 1, "model")["model"]
        assert fresh["0.weight"] is fresh["1.weight"]


def test_untied_tensors_take_what_was_stored_tied(tmp_path: Path) -> None:
    tensor = torch.rand(100)
    one, other = torch.zeros(100), torch.zeros(100)
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"a": {"x": tensor, "y": tensor}})
        checkpointer.restore(1, {"a": Box({"x": one, "y": other})})
    assert torch.equal(one, tensor)
    assert torch.equal(other, tensor)


def test_tied_tensors_refuse_what_was_stored_apart(tmp_path: Path) -> None:
    tensor = torch.zeros(10)
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"a": {"x": torch.ones(10), "y": torch.full((10,), 2.0)}})
        with pytest.raises(WrongState, match="a/y: tied to a/x here"):
            checkpointer.restore(1, {"a": Box({"x": tensor, "y": tensor})})
    assert not tensor.any()


def test_a_small_view_of_a_big_storage_costs_only_its_extent(tmp_path: Path) -> None:
    big = torch.rand(1_000_000)
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"a": {"view": big[500:510], "column": big.view(1000, 1000)[:3, 7]}})
        assert saved(checkpointer).total_bytes == 13 * 4
    assert pack_bytes(tmp_path / "v") < 400


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.rand(30, 20).t(),
    "strided": lambda: torch.rand(100)[::3],
    "channels_last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.rand(1, 7).expand(5, 7),
    "conjugated": lambda: torch.rand(50, dtype=torch.complex64).conj(),
    "negative": lambda: torch.rand(50, dtype=torch.complex64).conj().imag,
    "one element, any stride": lambda: torch.rand(5, 2)[:1, 0],
    "no element, any stride": lambda: torch.rand(0, 2, dtype=torch.float64)[:, 0],
    "parameter": lambda: nn.Parameter(torch.rand(9)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_is_stored_row_major_and_loaded_right(tmp_path: Path, layout: str) -> None:
    tensor = LAYOUTS[layout]()
    wanted = tensor.detach().clone()
    box = Box({"x": tensor})
    with Checkpointer(tmp_path / "v", 64) as checkpointer:
        checkpointer.save(1, {"a": box})
        if layout != "expanded":
            with torch.no_grad():
                tensor.zero_()
        checkpointer.restore(1, {"a": box})
        found = box.state["x"]
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found.resolve_conj().resolve_neg(), wanted.resolve_conj().resolve_neg())
        assert same(taken(checkpointer, 1, "a")["a"]["x"], wanted.resolve_conj().resolve_neg())


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "sparse": (lambda: torch.zeros(3, 3).to_sparse(), "a sparse tensor"),
    "meta": (lambda: torch.zeros(3, device="meta"), "a meta tensor"),
    "nested": (nn.UninitializedParameter, "UninitializedParameter"),
    "object": (object, "builtins.object"),
    "generator": (torch.Generator, "Generator"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_stored_is_refused_by_path_before_anything_is_written(
    tmp_path: Path, kind: str
) -> None:
    make, says = REFUSED[kind]
    state: dict[str, Tree] = {"x": torch.zeros(3), "deep": {"er": [make()]}}  # type: ignore[list-item]
    with Checkpointer(tmp_path / "v") as checkpointer:
        with pytest.raises(NotStorable, match=rf"a/deep/er/0: .*{says}"):
            checkpointer.save(1, {"a": state})
        assert checkpointer.wait() is None
        assert checkpointer.latest() is None
        assert not list((tmp_path / "v" / "packs").iterdir())


def test_a_part_needs_a_name_that_is_a_file_name(tmp_path: Path) -> None:
    with (
        Checkpointer(tmp_path / "v") as checkpointer,
        pytest.raises(NotStorable, match=r"'\.\./x' cannot name"),
    ):
        checkpointer.save(1, {"../x": {}})


def test_wrong_resume_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    other = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2, bias=False)).half()
    other_optimizer = torch.optim.AdamW(other.parameters())
    before = clone(other.state_dict())
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"model": model, "optimizer": optimizer})
        with pytest.raises(WrongState) as caught:
            checkpointer.restore(1, {"model": other, "optimizer": other_optimizer, "ema": Box({})})
        same_model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        wider = torch.optim.AdamW([nn.Parameter(torch.zeros(4, 5)), *list(same_model.parameters())[1:]])
        with pytest.raises(WrongState) as shapes:
            checkpointer.restore(1, {"model": same_model, "optimizer": wider})
    assert caught.value.exit_code == 2
    assert caught.value.differences == (
        "model/0.weight: float32[4, 4] in version 1, float16[5, 4] here",
        "model/0.bias: float32[4] in version 1, float16[5] here",
        "model/1.weight: float32[2, 4] in version 1, float16[2, 5] here",
        "model/1.bias: float32[2] in version 1, missing here",
        "optimizer: parameter groups of [4] parameters in version 1, of [3] here",
        "part ema: not in version 1, which has model, optimizer",
    )
    assert shapes.value.differences == (
        "optimizer/state/0/exp_avg: float32[4, 4] in version 1, parameter 0 has the shape [4, 5] here",
        "optimizer/state/0/exp_avg_sq: float32[4, 4] in version 1, parameter 0 has the shape [4, 5] here",
    )
    assert same(other.state_dict(), before)


def test_a_part_may_judge_for_itself(tmp_path: Path) -> None:
    class Picky(Taker):
        def differences(self, stored: object) -> list[str]:
            assert isinstance(stored, dict)
            return [f"{name} is {spec}" for name, spec in stored.items()]

    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"a": {"deep": {"x": torch.zeros(2, 3)}}})
        with pytest.raises(WrongState, match=r"a: deep/x is float32\[2, 3\]"):
            checkpointer.restore(1, {"a": Picky({})})
        box = Taker({"deep": {"x": torch.ones(2, 3)}})
        here = box.state["deep"]
        checkpointer.restore(1, {"a": box})
        assert isinstance(here, dict)
        assert not here["x"].any()


def test_another_chunk_size_is_refused(tmp_path: Path) -> None:
    Checkpointer(tmp_path / "v", 64).close()
    Checkpointer(tmp_path / "v", 64).close()
    with pytest.raises(UnknownFormat, match="chunks of 64 bytes, asked for were 128"):
        Checkpointer(tmp_path / "v", 128)
    with pytest.raises(ValueError, match="chunk_bytes must be"):
        Checkpointer(tmp_path / "w", 0)


def test_the_pool_is_reused(tmp_path: Path) -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    state: dict[str, Tree] = {"x": torch.zeros(4 << 20, dtype=torch.float32)}
    with Checkpointer(tmp_path / "v") as checkpointer:
        for step in range(3):
            checkpointer.save(step, {"a": state})
        checkpointer.wait()
        before = resident_bytes()
        for step in range(20):
            checkpointer.save(step, {"a": state})
        checkpointer.wait()
        assert resident_bytes() - before < 8 << 20


def test_the_pool_grows_only_when_it_must() -> None:
    pool = Pool()
    first = pool.take(1000)
    assert pool.take(10).data_ptr() == first.data_ptr()
    assert pool.take(first.numel()).data_ptr() == first.data_ptr()
    assert pool.take(first.numel() + 1).numel() > first.numel()


def test_many_small_tensors(tmp_path: Path) -> None:
    count, size = 20_000, 1024
    data = torch.arange(count * size // 4, dtype=torch.int32).view(count, -1)
    state: dict[str, Tree] = {f"layer.{index}": data[index] for index in range(count)}
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"a": state})
        info = saved(checkpointer)
        assert info.total_bytes == count * size
        assert len(list((tmp_path / "v" / "packs").iterdir())) == 1
        assert info.new_bytes < count * (size + 60)
        assert (tmp_path / "v/versions" / f"{1:020d}").stat().st_size < count * 80
        data.zero_()
        checkpointer.restore(1, {"a": Box(state)})
        assert torch.equal(data.view(-1), torch.arange(count * size // 4, dtype=torch.int32))
        checkpointer.save(2, {"a": state})
        assert saved(checkpointer).new_bytes == 0


def test_the_body_s_error_is_kept_and_the_save_s_noted(tmp_path: Path) -> None:
    def body() -> None:
        with Checkpointer(tmp_path / "v") as checkpointer:
            for name in ("versions", "packs"):
                (tmp_path / "v" / name).rename(tmp_path / f"moved {name}")
            checkpointer.save(1, {"a": {"x": torch.zeros(3)}})
            raise KeyError("the body's")

    with pytest.raises(KeyError) as caught:
        body()
    assert any("the last save failed" in note for note in caught.value.__notes__)


def test_importing_listing_and_verifying_need_no_torch(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "v") as checkpointer:
        checkpointer.save(1, {"a": {"x": torch.zeros(3)}})
    code = (
        "import sys, checkpoint; store = checkpoint.Store(sys.argv[1]); store.list(); store.verify(1); "
        "store.restore_as_head(1); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "v")], check=True)
