"""What every storage does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from stages.errors import StorageError, StorageMissing, StorageTaken
from stages.storage import Storage, stream

T = TypeVar("T")
DATA = bytes(range(256)) * 40


def run(coroutine: Coroutine[object, object, T]) -> T:
    return asyncio.run(coroutine)


class StorageContract:
    """A storage that is empty, made afresh by `make_storage`."""

    def make_storage(self) -> Storage:
        raise NotImplementedError

    @pytest.fixture
    def storage(self) -> Storage:
        return self.make_storage()

    def test_what_is_written_is_read(self, storage: Storage) -> None:
        run(storage.write("a/b c+é.bin", DATA))
        assert run(storage.size("a/b c+é.bin")) == len(DATA)
        spans = [(0, 3), (5000, 5001), (7, 7), (2, 4000), (len(DATA) - 1, len(DATA)), (0, len(DATA))]
        assert run(storage.read("a/b c+é.bin", spans)) == [DATA[start:stop] for start, stop in spans]
        assert run(storage.read("a/b c+é.bin", [])) == []

    def test_an_empty_file_is_one(self, storage: Storage) -> None:
        run(storage.write("empty", b""))
        assert run(storage.size("empty")) == 0
        assert run(storage.read("empty", [(0, 0)])) == [b""]

    def test_what_is_missing_is_named(self, storage: Storage) -> None:
        run(storage.write("a/b", b"x"))
        for path in ("a/c", "nothing", "a/b/c", "a"):
            with pytest.raises(StorageMissing, match=f"{path}: no such"):
                run(storage.size(path))
        with pytest.raises(StorageMissing, match="a/c: no such"):
            run(storage.read("a/c", [(0, 1)]))

    def test_a_span_over_the_end_is_an_error(self, storage: Storage) -> None:
        run(storage.write("a", b"12345"))
        for spans in ([(0, 6)], [(4, 9)], [(0, 1), (3, 7)], [(9, 12)]):
            with pytest.raises(StorageError, match="a: "):
                run(storage.read("a", spans))

    def test_writing_again_replaces_or_does_not(self, storage: Storage) -> None:
        run(storage.write("a", b"one"))
        run(storage.write("a", b"three"))
        assert run(storage.read("a", [(0, 5)])) == [b"three"]
        with pytest.raises(StorageTaken, match="a: is there already"):
            run(storage.write("a", b"four", replace=False))
        assert run(storage.read("a", [(0, 5)])) == [b"three"]
        run(storage.write("b", b"new", replace=False))
        assert run(storage.read("b", [(0, 3)])) == [b"new"]

    def test_of_several_writers_one_wins(self, storage: Storage) -> None:
        async def race() -> list[BaseException | None]:
            writers = (storage.write("version", b"%d" % number, replace=False) for number in range(6))
            return await asyncio.gather(*writers, return_exceptions=True)

        found = run(race())
        assert found.count(None) == 1
        assert all(isinstance(error, StorageTaken) for error in found if error is not None)
        assert run(storage.read("version", [(0, 1)])) == [b"%d" % found.index(None)]

    def test_lists_below_a_folder_in_the_order_of_a_walk(self, storage: Storage) -> None:
        for path in ("b.txt", "b/2", "b/1/z", "a", "ba/x", "b-c/y"):
            run(storage.write(path, path.encode()))
        everything = ["a", "b/1/z", "b/2", "b-c/y", "b.txt", "ba/x"]
        assert [entry.path for entry in run(storage.list(""))] == everything
        assert [(entry.path, entry.bytes) for entry in run(storage.list("b"))] == [("b/1/z", 5), ("b/2", 3)]
        assert run(storage.list("nothing")) == []

    @pytest.mark.parametrize("start", [300])
    @pytest.mark.parametrize("size", [0, 399])
    @pytest.mark.parametrize(("pieces", "window"), [(1, 0), (1, 100), (3, 200), (9, 1000)])
    def test_a_stream_is_the_bytes_in_order(
        self, storage: Storage, start: int, size: int, pieces: int, window: int
    ) -> None:
        run(storage.write("s", DATA[:1000]))

        async def collect() -> list[bytes]:
            found = stream(
                storage,
                "s",
                start,
                start + size,
                piece_bytes=16,
                range_bytes=16 * pieces,
                window_bytes=window,
            )
            return [piece async for piece in found]

        got = run(collect())
        assert b"".join(got) == DATA[start : start + size]
        assert all(len(piece) == 16 for piece in got[:-1])
