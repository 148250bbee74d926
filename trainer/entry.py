"""How every command of Headrace ends: what is printed, and with which exit code.

Exit codes: 0 done, 1 failed, 2 the user's mistake. An exception says which by an attribute `exit_code`
(each package's exception tree sets it); one that says nothing is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable

from pipeline import StageFailed

DONE, FAILED, MISTAKE = 0, 1, 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def guarded(main: Callable[[], int]) -> int:
    """Run `main`; print an error as one message on stderr and return the exit code it stands for."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks must not end a command that has done its work.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main()
        sys.stdout.flush()  # here, where a full disk or a closed pipe is still an error of ours to tell
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`… | head`). Without this, the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - the one place where every command ends
        return report(error)


def report(error: Exception) -> int:
    """Print `error` and return its exit code: no traceback where the error explains itself."""
    cause = error.__cause__
    if isinstance(error, StageFailed) and isinstance(getattr(cause, "exit_code", None), int):
        # It names file and row itself; which stage found it out is nothing that a user could act on.
        assert isinstance(cause, Exception)
        return report(cause)
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return code
    if isinstance(error, OSError):
        print(f"error: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return FAILED
    traceback.print_exception(error)
    return FAILED
