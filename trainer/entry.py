"""How every command of Headrace ends: what is printed, and with which exit code.

Exit codes: 0 done, 1 failed, 2 the user's mistake. An exception says which by an attribute `exit_code`
(each package's exception tree sets it); one that says nothing is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

DONE, FAILED, MISTAKE = 0, 1, 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def guarded(main: Callable[[], int]) -> int:
    """Run `main`; print an error as one message on stderr and return the exit code it stands for."""
    try:
        return main()
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
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        print(f"error: {error}", file=sys.stderr)
        return code
    if isinstance(error, OSError) and error.filename is not None:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return FAILED
    traceback.print_exception(error)
    return FAILED
