"""The exceptions of the engine.

```
PipelineError        the engine cannot go on: read after close(), or a fault of the engine itself
├── StageFailed      a stage raised: which stage, at which item, from where; chained to what it raised
├── StateMismatch    start() was given a state that is not one of this plan's
├── TimeLimit        a call ran over its stage's time limit; the cause of a StageFailed
└── TooManyDropped   a stage dropped more items than it may; the cause of a StageFailed

AbandonedThread      (a RuntimeWarning) close() gave up waiting for a function that did not return
```

`exit_code` is what a command ends with (2 the user's mistake, 1 a failure). `StageFailed` takes it over from
its cause, so that a broken input that a stage reports as the user's mistake is still one after it has crossed
the engine.
"""

from __future__ import annotations


class PipelineError(Exception):
    """The engine cannot go on."""

    exit_code: int = 1


class StageFailed(PipelineError):
    """A stage's function or source raised; `__cause__` is what it raised, with its traceback.

    Items before `index` have been delivered when this is raised.
    """

    def __init__(
        self, stage: str, index: int, reason: str, provenance: str | None = None, exit_code: int = 1
    ) -> None:
        # All of the arguments go to Exception.args: copying and unpickling call the class with them.
        super().__init__(stage, index, reason, provenance, exit_code)
        self.stage = stage
        """The stage's name in the plan."""
        self.index = index
        """Which item, counted from 0 at this start; for a source the one that it was about to give."""
        self.reason = reason
        """Type and message of the original exception."""
        self.provenance = provenance
        """Where the item came from (file and row, say), where it or the exception tells."""
        self.exit_code = exit_code

    def __str__(self) -> str:
        place = f" ({self.provenance})" if self.provenance else ""
        return f"stage '{self.stage}' failed at item {self.index}{place}: {self.reason}"

    @classmethod
    def of(cls, error: BaseException, *, stage: str, index: int, value: object = None) -> StageFailed:
        """Wrap what `stage` raised at item `index`, whose input was `value`."""
        traced = (_attribute(thing, "provenance") for thing in (error, value))
        code = _attribute(error, "exit_code")
        message = _message(error)
        failure = cls(
            stage,
            index,
            f"{type(error).__name__}: {message}" if message else type(error).__name__,
            next((place for place in traced if isinstance(place, str)), None),
            code if isinstance(code, int) else PipelineError.exit_code,
        )
        failure.__cause__ = error
        return failure


class StateMismatch(PipelineError):
    """The state that a plan was to start at has another shape than its items' `resume`."""

    exit_code = 2


class TimeLimit(PipelineError):
    """A call did not return within its stage's time limit."""


class TooManyDropped(PipelineError):
    """More items failed than the stage's policy lets it drop."""


class AbandonedThread(RuntimeWarning):
    """A thread was left behind that was still inside a stage's function.

    A thread cannot be killed. It is a daemon, so it does not keep the interpreter alive, and what it returns
    is dropped.
    """


# Both run code of the user's while a failure is reported: an exception out of them would leave the consumer waiting.


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:  # noqa: BLE001
        return f"<its message raised {type(another).__name__}>"


def _attribute(thing: object, name: str) -> object:
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001
        return None
