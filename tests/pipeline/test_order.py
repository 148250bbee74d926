"""What comes out is a function of the plan and the state: order, resume, and how far is read ahead."""

from __future__ import annotations

import itertools
from threading import Barrier, Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import Plan, start
from tests.pipeline.sources import Count, double, triple

FACTORS = {double: 2, triple: 3}

stages = st.lists(
    st.tuples(st.sampled_from([double, triple]), st.integers(1, 4), st.integers(0, 3)), max_size=3
)


def build(source: Count, stages: list, source_ahead: int = 3) -> Plan[int]:
    plan = Plan(source, ahead=source_ahead)
    for function, width, more in stages:
        plan = plan.map(function, width=width, ahead=width + more)
    return plan


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 40), stages=stages, pauses=st.booleans())
def test_order_out_equals_order_in(n: int, stages: list, pauses: bool) -> None:
    with start(build(Count(n, pauses=pauses), stages)) as running:
        items = list(running)
    factor = 1
    for function, _, _ in stages:
        factor *= FACTORS[function]
    assert [item.value for item in items] == [factor * i for i in range(n)]
    assert [item.resume for item in items] == [{"next": i + 1} for i in range(n)]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 16), stages=stages)
def test_resumes_at_every_cut_twice_in_a_row(n: int, stages: list) -> None:
    plan = build(Count(n, pauses=True), stages)
    with start(plan) as running:
        whole = list(running)
    for k in range(1, n + 1):
        with start(plan) as running:
            first = list(itertools.islice(running, k))  # left in the middle, with more read ahead
        assert first == whole[:k]
        with start(plan, at=first[-1].resume) as running:
            second = list(itertools.islice(running, (n - k) // 2))
        with start(plan, at=(second or first)[-1].resume) as running:
            assert first + second + list(running) == whole


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("function", [double, triple])
def test_order_at_every_width(function: object, width: int) -> None:
    with start(Plan(Count(300)).map(function, width=width)) as running:
        assert [item.value for item in running] == [FACTORS[function] * i for i in range(300)]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("functions", [[], [double], [triple], [double, triple], [triple, double]])
def test_read_ahead_is_bounded_exactly(functions: list, width: int) -> None:
    """A consumer that stops, stops the reads: the windows are full, and nothing is between them."""

    class Watched(Count):
        async def read(self, at):
            async for item in super().read(at):
                self.worst = max(self.worst, self.read_count - taken)
                if self.read_count == bound:
                    self.all_read.set()
                yield item

    source = Watched(100)
    source.worst = taken = 0
    plan = build(source, [(function, width, 2) for function in functions], source_ahead=4)
    bound = 4 + len(functions) * (width + 2)
    with start(plan) as running:
        assert source.all_read.wait(10)
        while True:
            taken += 1  # before next(): what it takes makes room at once
            if next(running, None) is None:
                break
    assert source.worst == bound
    assert source.read_count == 100


def test_a_width_is_used_to_the_full() -> None:
    """Three calls can only return once all three are in flight."""
    barrier = Barrier(3)

    def meet(x: int) -> int:
        barrier.wait(10)
        return x

    with start(Plan(Count(30)).map(meet, width=3, ahead=3)) as running:
        assert [item.value for item in running] == list(range(30))


def test_a_free_place_is_used_while_another_call_is_running() -> None:
    """Call 1 returns only once call 2 runs, for which there is room only once item 0 is taken."""
    running_2 = Event()

    def wait_for_the_next(x: int) -> int:
        if x == 1:
            assert running_2.wait(10)
        if x == 2:
            running_2.set()
        return x

    with start(Plan(Count(3)).map(wait_for_the_next, width=2, ahead=2)) as running:
        assert [item.value for item in running] == [0, 1, 2]


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_no_wake_up_is_lost(ahead: int, hasty_switches: None) -> None:
    """Every hop (loop to thread, thread to thread, thread to loop, thread to consumer), waiting all the time."""
    plan = Plan(Count(1500), ahead=ahead)
    for function in (triple, triple, double, triple):
        plan = plan.map(function, ahead=ahead)
    with start(plan) as running:
        assert [item.value for item in running] == [54 * i for i in range(1500)]


def test_a_cheap_def_may_run_on_the_loop() -> None:
    with start(Plan(Count(50)).map(triple, on="loop")) as running:
        assert [item.value for item in running] == [3 * i for i in range(50)]


def test_one_plan_runs_twice_at_the_same_time() -> None:
    plan = Plan(Count(50)).map(triple, width=2)
    with start(plan) as one, start(plan) as other:
        assert [(a.value, b.value) for a, b in zip(one, other, strict=True)] == [
            (3 * i, 3 * i) for i in range(50)
        ]
