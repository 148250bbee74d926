"""What every part, and every store of versions, must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import pytest
import torch

from checkpoint import Checkpointer, NoVersion, Part, StoreLocked
from tests.checkpoint.states import clone, same


class PartContract(ABC):
    """A part that is saved, changed and restored is as it was; so is a fresh one."""

    @abstractmethod
    def make(self) -> Part:
        """A part in its first state; twice the same."""

    @abstractmethod
    def change(self, part: Part) -> None:
        """Take it to another state."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        return tmp_path / "versions"

    def test_a_changed_part_is_restored(self, store: Path) -> None:
        part = self.make()
        self.change(part)
        saved = clone(part.state_dict())
        with Checkpointer(store, 64) as checkpointer:
            checkpointer.save(1, {"part": part})
            self.change(part)
            assert not same(part.state_dict(), saved)
            checkpointer.restore(1, {"part": part})
            assert same(part.state_dict(), saved)

    def test_a_fresh_part_is_restored_and_goes_on_alike(self, store: Path) -> None:
        part = self.make()
        self.change(part)
        with Checkpointer(store, 64) as checkpointer:
            checkpointer.save(1, {"part": part})
        fresh = self.make()
        with Checkpointer(store) as checkpointer:
            checkpointer.restore(None, {"part": fresh})
        self.change(part)
        self.change(fresh)
        assert same(part.state_dict(), fresh.state_dict())

    def test_an_unchanged_part_costs_no_pack_bytes(self, store: Path) -> None:
        part = self.make()
        self.change(part)
        with Checkpointer(store, 64) as checkpointer:
            checkpointer.save(1, {"part": part})
            checkpointer.save(2, {"part": part})
            info = checkpointer.wait()
            assert info is not None
            assert (info.version, info.new_bytes) == (2, 0)
        fresh = self.make()
        with Checkpointer(store) as checkpointer:
            checkpointer.restore(None, {"part": fresh})
            checkpointer.save(3, {"part": fresh})
            info = checkpointer.wait()
            assert info is not None
            assert info.new_bytes == 0


class CheckpointerContract(ABC):
    """What the trainer relies on, wherever the store is."""

    @abstractmethod
    def open(self) -> Checkpointer:
        """The one store of a test, opened for writing."""

    def test_versions_count_from_one_and_name_their_parent(self) -> None:
        with self.open() as checkpointer:
            assert checkpointer.latest() is None
            assert checkpointer.wait() is None
            for step in (10, 20):
                checkpointer.save(step, {"a": {"x": torch.full((3,), float(step))}}, {"loss": step / 10})
            info = checkpointer.wait()
            assert info is not None
            assert (info.version, info.parent, info.step, info.summary) == (2, 1, 20, {"loss": 2.0})
            assert checkpointer.latest() == 2

    def test_restoring_an_older_version_makes_it_the_parent(self) -> None:
        with self.open() as checkpointer:
            for step in (1, 2, 3):
                checkpointer.save(step, {"a": {"x": torch.full((3,), float(step))}})
            assert checkpointer.restore(1, {}).info.step == 1
            checkpointer.save(4, {"a": {"x": torch.zeros(3)}})
            info = checkpointer.wait()
            assert info is not None
            assert (info.version, info.parent) == (4, 1)

    def test_plain_data_of_every_part_is_shown(self) -> None:
        with self.open() as checkpointer:
            checkpointer.save(1, {"a": {"x": torch.zeros(1), "n": [1, None]}, "b": {"c": {"d": 0.5}}})
            assert checkpointer.restore(None, {}).plain == {"a": {"n": [1, None]}, "b": {"c": {"d": 0.5}}}

    def test_nothing_to_restore(self) -> None:
        with self.open() as checkpointer:
            with pytest.raises(NoVersion, match="no versions yet"):
                checkpointer.restore(None, {})
            checkpointer.save(1, {})
            checkpointer.save(2, {})
            with pytest.raises(NoVersion, match="no version 7: it has 1 to 2"):
                checkpointer.restore(7, {})

    def test_what_changes_after_save_is_not_saved(self) -> None:
        tensor = torch.arange(100_000, dtype=torch.float32)
        with self.open() as checkpointer:
            checkpointer.save(1, {"a": {"x": tensor}})
            tensor.zero_()
            checkpointer.restore(1, {"a": _Holder(tensor)})
            assert torch.equal(tensor, torch.arange(100_000, dtype=torch.float32))

    def test_a_second_writer_is_refused(self) -> None:
        with self.open(), pytest.raises(StoreLocked, match="is being written by process") as caught:
            self.open()
        assert caught.value.exit_code == 2
        self.open().close()


class _Holder:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"x": self.tensor}

    def load_state_dict(self, state: object, /) -> None: ...
