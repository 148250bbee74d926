"""A map's border: what it takes in, how much at a time, and how each call is settled in its output window."""

from __future__ import annotations

import math
from collections.abc import Callable

from .budget import Budget, Claim, size_of
from .errors import StageFailed
from .plan import Mapping
from .policy import Dropped
from .statistics import Meter
from .window import DROPPED, END, PENDING, VALUE, Slot, Window

HOP_S = {"loop": 1e-3, "thread": 1e-3, "process": 8e-3}
"""Work that a worker takes at once: a hop between threads costs tens of µs and one to a process 200 µs of CPU time on
both sides together, which is little beside it."""
_LEARN = 0.25
_LARGER = 4


class Intake:
    """Shared by a map's workers, who take turns to admit and settle on their own."""

    def __init__(
        self,
        spec: Mapping,
        source: Window,
        out: Window,
        budget: Budget,
        claim: Claim,
        fault: Callable[[BaseException], None],
    ) -> None:
        self.name = spec.name
        self.fault = fault
        """To be called with what a worker's own code raises: without it the consumer would wait for ever."""
        self.source = source
        self.out = out
        self.over = False
        """The input is over or a call failed: nothing more is admitted."""
        self._drops = spec.on_error is not None
        self._hop_s = HOP_S[spec.place]
        # Of a call in a process, only the whole message can be timed.
        alone = spec.place == "process" and spec.time_limit_s is not None
        self._share = 1 if alone else max(1, spec.ahead // (2 * spec.width))
        self._budget = budget
        self._claim = claim
        self._call_s: float | None = None
        self._output_bytes = 0
        self._largest_bytes = 0

    def may_reserve(self) -> bool:
        """Whether there is room for one output, in items and in bytes: for that of the next input, if it is there."""
        return self.out.has_room() and self._claim.allows(self._expects(self.source.next_bytes()))

    def may_take(self) -> bool:
        """Whether there is an input."""
        return self.source.is_ready()

    def most(self, below_s: float = math.inf) -> int:
        """How many calls a worker should take at once, by what calls have taken lately: one from `below_s` on."""
        if self._call_s is None or self._call_s >= below_s:
            return 1
        return max(1, min(self._share, int(self._hop_s / self._call_s)))

    def calls_take_less(self, than_s: float) -> bool:
        """Whether calls have lately taken less than that."""
        return self._call_s is not None and self._call_s < than_s

    def admit(self, most: int) -> list[Slot]:
        """Take inputs and reserve their outputs: slots that hold the inputs, none where all that came was dropped.

        After `may_reserve` and `may_take`, by whoever has the turn.
        """
        source, out = self.source, self.out
        if most > 1:
            most = min(most, out.room(), max(1, self._claim.room_for(self._expects(source.next_bytes()))))
        slots = source.take_values(most) or self._take_one()
        reserved = 0
        for slot in slots:
            slot.kind = PENDING
            expected = self._expects(slot.nbytes)
            slot.nbytes += expected
            reserved += expected
        out.reserve(slots)
        if reserved:
            self._budget.add(reserved)
        return slots

    def _expects(self, input_bytes: int) -> int:
        """What an output will weigh: as outputs did lately; of a large input up to four times that, if one ever did."""
        mean = self._output_bytes
        return max(mean, min(input_bytes, _LARGER * mean, self._largest_bytes))

    def _take_one(self) -> list[Slot]:
        """What is next behind a gate, or the end, which is passed on."""
        slot = self.source.take()
        if slot is None:
            return []
        if slot.kind is END:
            self.over = True
            self.out.push(slot)
            return []
        return [slot]

    def done(self, slot: Slot, value: object, tally: Tally) -> None:
        """Publish a call's result."""
        nbytes = size_of(value)
        tally.items += 1
        tally.nbytes += nbytes
        tally.change += nbytes - slot.nbytes
        slot.value = value
        slot.nbytes = nbytes
        slot.kind = VALUE
        if self.out.filled_bell.waiting:
            self.out.published()
        self._largest_bytes = max(self._largest_bytes, nbytes)
        more = nbytes - self._output_bytes
        self._output_bytes += more if -64 < more < 64 else more // 4

    def failed(self, slot: Slot, error: BaseException, *, may_drop: bool = True) -> bool:
        """Publish what a call raised; gives whether the stage goes on."""
        failure = StageFailed.of(error, stage=self.name, index=slot.index, value=slot.value)
        goes_on = self._drops and may_drop and isinstance(error, Exception)
        if goes_on:
            slot.value = Dropped(failure, slot.value)
            slot.kind = DROPPED
        else:
            self.over = True
            slot.end(failure)
        self.out.published()
        return goes_on

    def took(self, calls: int, seconds: float, tally: Tally, meter: Meter) -> None:
        """Account for `calls` calls in a row that took `seconds` together."""
        if tally.items:
            meter.out(tally.items, tally.nbytes)
            self._budget.add(tally.change)
            tally.items = tally.nbytes = tally.change = 0
        each = max(seconds / calls, 1e-9)
        if self._call_s is None:
            self._call_s = each
        else:
            # One call that lost its turn to other threads is no reason to take fewer at once from then on.
            self._call_s += _LEARN * (min(each, 2 * self._call_s) - self._call_s)


class Tally:
    """What one worker has made since it last said so: counters shared by all would cost a lock per item."""

    __slots__ = ("change", "items", "nbytes")

    def __init__(self) -> None:
        self.items = 0
        self.nbytes = 0
        self.change = 0
        """Bytes to add to the budget."""
