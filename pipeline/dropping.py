"""The gate behind a map that drops items: counts them, records them, and keeps them from the next stage."""

from __future__ import annotations

from threading import current_thread, main_thread

from .budget import Budget
from .errors import PipelineError, StageFailed, TooManyDropped
from .item import JSON
from .policy import Drop, Dropped
from .resuming import with_stage
from .window import DROPPED, VALUE, Slot


class DropGate:
    """Passes slots in order, so that the count is the same at every width."""

    def __init__(self, stage: str, policy: Drop, count: JSON, budget: Budget) -> None:
        self._stage = stage
        self._policy = policy
        self._count = count if isinstance(count, int) else 0
        self._budget = budget

    def passing(self, slot: Slot) -> Slot | None:
        if slot.kind is VALUE:
            assert slot.resume is not None
            slot.resume = with_stage(slot.resume, self._stage, self._count)
        elif slot.kind is DROPPED:
            return self._drop(slot)
        return slot

    def _drop(self, slot: Slot) -> Slot | None:
        record = slot.value
        assert isinstance(record, Dropped)
        self._budget.add(-slot.nbytes)
        self._count += 1
        if self._count > self._policy.at_most:
            return self._end(slot, record, self._too_many(record.failure))
        try:
            self._policy.to.put(record)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise  # a Ctrl-C is the consumer's, which happens to be in the sink
            return self._end(slot, record, error)
        return None

    def _too_many(self, last: StageFailed) -> PipelineError:
        error = TooManyDropped(
            f"{self._count} items failed, and {self._policy.at_most} may be dropped; the last one: {last.reason}"
        )
        error.exit_code = last.exit_code
        error.__cause__ = last.__cause__
        return error

    def _end(self, slot: Slot, record: Dropped, error: BaseException) -> Slot:
        slot.end(StageFailed.of(error, stage=self._stage, index=slot.index, value=record.value))
        return slot
