"""Shared memory under any order of sending, keeping and dropping."""

from __future__ import annotations

import socket
from typing import cast

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.processes.channel import Channel

KIB = 1 << 10


def never(_: int) -> None:
    raise AssertionError("a message was not there")


class Lending(RuleBasedStateMachine):
    """Two ends of a channel in one process; whoever receives keeps some of the arrays, and drops them later."""

    @initialize(lend_kib=st.sampled_from([0, 64, 300, 2000]))
    def connect(self, lend_kib: int) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in ends:
            end.setblocking(False)
        self.lend_bytes = lend_kib * KIB
        self.channels = [Channel(end, never, self.lend_bytes) for end in ends]
        self.kept: list[tuple[int, np.ndarray]] = []
        self.number = 0

    @rule(
        sizes=st.lists(st.sampled_from([10, 30 * KIB, 32 * KIB, 70 * KIB, 200 * KIB]), max_size=4),
        direction=st.integers(0, 1),
        keep=st.integers(0, 15),
        stop_after=st.integers(0, 6),
    )
    def pass_on(self, sizes: list[int], direction: int, keep: int, stop_after: int) -> None:
        sender, receiver = self.channels[direction], self.channels[1 - direction]
        first = self.number
        for size in sizes:
            self.number += 1
            array = np.full(size, self.number % 251, np.uint8)
            sender.add(array)
            array[:] = 255
        sender.send(first)
        batch = receiver.receive()
        assert batch.tail == first
        values = receiver.values(batch)
        for place, value in enumerate(values):
            array = cast("np.ndarray", value)
            assert len(array) == sizes[place]
            assert (array == (first + place + 1) % 251).all()
            if keep & (1 << place):
                self.kept.append(((first + place + 1) % 251, array))
            if place == stop_after:
                break
        values.close()

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.kept:
            del self.kept[data.draw(st.integers(0, len(self.kept) - 1))]

    @rule()
    def drop_all(self) -> None:
        self.kept.clear()

    @invariant()
    def what_is_kept_is_as_it_was(self) -> None:
        assert all((array == content).all() for content, array in getattr(self, "kept", []))

    @invariant()
    def no_more_is_lent_than_may_be(self) -> None:
        for channel in getattr(self, "channels", []):
            assert 0 <= channel._borrower._lent_bytes <= self.lend_bytes

    def teardown(self) -> None:
        for channel in getattr(self, "channels", []):
            channel.close()
        self.what_is_kept_is_as_it_was()


Lending.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLending = Lending.TestCase
