"""Several ranks over a torch.distributed process group: words are JSON, and all of them go through rank 0.

    rank 1 ── word ──► rank 0 ── all words ──► rank 1
    rank 2 ── word ──►        ── all words ──► rank 2

A star, and no all_gather: in a ring a rank learns of a death only from its neighbours, and does not learn whose
it was. Here rank 0 sees who is gone and tells the rest, and whoever loses rank 0 has lost the one that commits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from checkpoint import errors, strict
from checkpoint.errors import CheckpointError, RankFailed, RankLost
from checkpoint.peers import TEXT, Codec
from checkpoint.strict import JSON, Malformed

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

T = TypeVar("T")

MAX_WORD_BYTES = 256 << 20

_KINDS: Mapping[str, type[CheckpointError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CheckpointError)
}


class Group:
    """The peers of a process group, which nobody else may use: words are told apart by their order alone.

    Args:
        group: a gloo group that this process is in. Its timeout bounds every wait for a rank that lives and
            says nothing.
    """

    def __init__(self, group: ProcessGroup) -> None:
        import torch.distributed as dist

        if dist.get_backend(group) == "nccl":
            raise ValueError("ranks that save together need a group over gloo, got one over nccl")
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group that it was to save with")
        self._lost: RankLost | None = None

    def first(self, doing: str, act: Callable[[], T], codec: Codec[T]) -> T:
        if self.rank == 0:
            value, _ = self._act(doing, act, codec, range(1))
            return value
        word = self._exchange(doing, {})[0]
        if "failed" in word:
            raise _heard(word, 0)
        return _decoded(codec, word, 0)

    def every(self, doing: str, act: Callable[[], T], codec: Codec[T]) -> Sequence[T]:
        own, words = self._act(doing, act, codec, range(self.size))
        # What one rank can make no sense of stops all of them.
        return self.together(
            f"{doing}: heard",
            lambda: [
                own if rank == self.rank else _decoded(codec, word, rank) for rank, word in enumerate(words)
            ],
        )

    def together(self, doing: str, act: Callable[[], T]) -> T:
        silent: Codec[T] = Codec(lambda value: None, _nothing)
        own, _ = self._act(doing, act, silent, range(self.size))
        return own

    def agree(self, what: str, digest: Callable[[], str]) -> None:
        digests = self.every(f"comparing {what}", digest, TEXT)
        for rank, other in enumerate(digests):
            if other != digests[0]:
                raise RankFailed(
                    f"rank {rank}: {what} differ from rank 0's: all ranks need one file system and make the same calls"
                )

    def _act(
        self, doing: str, act: Callable[[], T], codec: Codec[T], decisive: range
    ) -> tuple[T, Sequence[Mapping[str, JSON]]]:
        """Act and tell. Raises the failure of the first of the decisive ranks that failed."""
        try:
            value = act()
            word: Mapping[str, JSON] = {"done": codec.encode(value)}
        except Exception as error:
            words = self._exchange(doing, {"failed": _told(error)})
            self._raise_failure(words, decisive, error)
            raise
        words = self._exchange(doing, word)
        self._raise_failure(words, decisive, None)
        return value, words

    def _raise_failure(
        self, words: Sequence[Mapping[str, JSON]], decisive: range, own: Exception | None
    ) -> None:
        """All ranks see the same class, so that all go the same way; one that has an error of it raises its own."""
        for rank in decisive:
            if "failed" not in words[rank]:
                continue
            failure = _heard(words[rank], rank)
            if own is not None and type(failure).__name__ == _told(own)["kind"]:
                raise own
            raise failure from own

    def _exchange(self, doing: str, word: Mapping[str, JSON]) -> Sequence[Mapping[str, JSON]]:
        """Every rank's word. That of a rank which is lost, or does something else, is a failure."""
        if self._lost is not None:
            raise self._lost
        data = strict.encode({"doing": doing, **word})
        if len(data) > MAX_WORD_BYTES:
            too_long = RankFailed(f"{len(data)} bytes to say, at most {MAX_WORD_BYTES} are sent")
            data = strict.encode({"doing": doing, "failed": _told(too_long)})
        return self._collect(doing, data) if self.rank == 0 else self._report(doing, data)

    def _collect(self, doing: str, own: bytes) -> Sequence[Mapping[str, JSON]]:
        words = [_word(own)]
        for rank in range(1, self.size):
            try:
                word = _word(self._receive(rank, MAX_WORD_BYTES))
            except RuntimeError as error:
                lost = RankLost(
                    f"gone, or out of reach, while the others are at {doing!r}: its own output says why ({error})",
                    rank,
                )
                word = {"failed": _told(lost)}
            except Malformed as error:
                word = {"failed": _told(RankFailed(f"it said what makes no sense: {error}"))}
            if word.get("doing", doing) != doing:
                astray = RankFailed(
                    f"it is at {word.get('doing')!r} while rank 0 is at {doing!r}: all ranks must make the same calls"
                )
                word = {"failed": _told(astray)}
            words.append(word)
        self._tell(strict.encode([{**word, "doing": doing} for word in words]))
        return words

    def _tell(self, data: bytes) -> None:
        import torch
        import torch.distributed as dist

        size, body = torch.tensor([len(data)]), _tensor(data)
        sends: list[dist.Work | None] = []
        for rank in range(1, self.size):
            for part in (size, body):
                try:
                    sends.append(dist.isend(part, group=self._group, group_dst=rank))
                except RuntimeError:
                    break  # it is gone: what it said, or did not say, has been heard
        for send in sends:
            if send is not None:
                try:
                    send.wait()
                except RuntimeError:
                    continue

    def _report(self, doing: str, data: bytes) -> Sequence[Mapping[str, JSON]]:
        import torch
        import torch.distributed as dist

        try:
            dist.send(torch.tensor([len(data)]), group=self._group, group_dst=0)
            dist.send(_tensor(data), group=self._group, group_dst=0)
            words = _words(self._receive(0, self.size * MAX_WORD_BYTES), self.size)
        except Malformed as error:
            raise RankFailed(f"rank 0 said what makes no sense: {error}") from error
        except RuntimeError as error:
            self._lost = RankLost(
                f"rank 0: gone, or out of reach, while rank {self.rank} is at {doing!r}: its own output says why "
                f"({error})",
                0,
            )
            raise self._lost from error
        if words[0].get("doing") != doing:
            raise RankFailed(
                f"rank 0 is at {words[0].get('doing')!r} while rank {self.rank} is at {doing!r}: "
                "all ranks must make the same calls"
            )
        return words

    def _receive(self, rank: int, most: int) -> memoryview:
        import torch
        import torch.distributed as dist

        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, group=self._group, group_src=rank)
        count = strict.integer(int(size), "the bytes of a word", least=1, most=most)
        data = torch.empty(count, dtype=torch.uint8)
        dist.recv(data, group=self._group, group_src=rank)
        return data.numpy().data


def _decoded(codec: Codec[T], word: Mapping[str, JSON], rank: int) -> T:
    try:
        return codec.decode(word.get("done"))
    except Malformed as error:
        raise RankFailed(f"rank {rank} said what makes no sense here: {error}") from error


def _tensor(data: bytes) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _word(data: bytes | memoryview) -> Mapping[str, JSON]:
    return strict.mapping(strict.decode(data, "a word"), "a word")


def _words(data: memoryview, size: int) -> Sequence[Mapping[str, JSON]]:
    listed = strict.sequence(strict.decode(data, "what rank 0 said"), "words", most=size)
    return [strict.mapping(word, "a word") for word in listed]


def _told(error: Exception) -> Mapping[str, JSON]:
    if isinstance(error, CheckpointError):
        return {"kind": type(error).__name__, "told": error.told()}
    return _told(RankFailed(f"{type(error).__name__}: {error}"))


def _heard(word: Mapping[str, JSON], rank: int) -> CheckpointError:
    failed = strict.mapping(word.get("failed"), "a failure")
    kind = _KINDS.get(strict.text(failed.get("kind"), "the kind of a failure"), RankFailed)
    return kind.retold(strict.mapping(failed.get("told"), "a failure"), rank)


def _nothing(value: JSON) -> NoReturn:
    raise Malformed("no result was asked for")
