"""What becomes of a call in a worker, and how an exception travels from there to here."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import NamedTuple

from .errors import RemoteError, RemoteTraceback


class Returned(NamedTuple):
    """A call that returned."""

    value: object
    began: float
    """`time.perf_counter()` in the worker, which is the same clock as in this process."""
    ended: float
    cpu_s: float
    """CPU time of all threads of the worker; calls of a batch share it alike."""


class Raised(NamedTuple):
    """A call that raised, or whose argument or result could not be sent."""

    error: BaseException
    began: float
    ended: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way between processes: itself where it can be pickled, and always as text."""

    kind: str
    message: str
    text: str
    pickled: bytes | None
    provenance: str | None
    exit_code: int | None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Take down `error`. Never raises, whatever the exception's own methods do."""
        provenance, exit_code = _attribute(error, "provenance"), _attribute(error, "exit_code")
        return cls(
            kind=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
            message=_message(error),
            text=_traceback(error),
            pickled=_pickled(error),
            provenance=provenance if isinstance(provenance, str) else None,
            exit_code=exit_code if isinstance(exit_code, int) else None,
        )

    def error(self) -> BaseException:
        """The original if it unpickles here, else a `RemoteError`; its cause is a `RemoteTraceback`."""
        error = _unpickled(self.pickled)
        if error is None:
            error = RemoteError(self.kind, self.message, self.text)
            if self.exit_code is not None:
                error.exit_code = self.exit_code
            if self.provenance is not None:
                vars(error)["provenance"] = self.provenance
        error.__cause__ = RemoteTraceback(self.text)
        return error


class Reply(NamedTuple):
    """What goes with the results of a batch."""

    times: bytes
    """float64: when each call began and ended."""
    cpu_s: float
    """Of the whole batch."""
    failure: Failure | None
    """What ended it early."""


# All of these run code of the user's while a failure is reported: an exception out of them would hide it.


def _pickled(error: BaseException) -> bytes | None:
    """`error`, if it comes out of a round trip as it was: many exceptions pickle but do not unpickle."""
    try:
        pickled = pickle.dumps(error, protocol=5)
        copy = pickle.loads(pickled)
        same = type(copy) is type(error) and str(copy) == str(error)
    except BaseException:  # noqa: BLE001
        return None
    return pickled if same else None


def _unpickled(pickled: bytes | None) -> BaseException | None:
    if pickled is None:
        return None
    try:
        error = pickle.loads(pickled)
    except BaseException:  # noqa: BLE001
        return None
    return error if isinstance(error, BaseException) else None


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as another:  # noqa: BLE001
        return f"<its message raised {type(another).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as another:  # noqa: BLE001
        frames = "".join(traceback.format_tb(error.__traceback__))
        return f"{frames}{type(error).__name__}: <formatting it raised {type(another).__name__}>\n"


def _attribute(error: BaseException, name: str) -> object:
    try:
        return getattr(error, name, None)
    except BaseException:  # noqa: BLE001
        return None
