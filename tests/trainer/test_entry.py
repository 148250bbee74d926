"""How a command ends: one message, the right code, no traceback for what explains itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from pipeline import StageFailed
from trainer.entry import DONE, FAILED, INTERRUPTED, MISTAKE, guarded
from trainer.errors import ConfigError, TrainingFailed


def raising(error: BaseException) -> Callable[[], int]:
    def main() -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a key"), MISTAKE),
        (TrainingFailed("a loss"), FAILED),
        (OSError(28, "No space", "f"), FAILED),
    ],
)
def test_an_error_that_explains_itself_is_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(raising(error)) == code
    assert capsys.readouterr().err.startswith("error: ")
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(AttributeError("x"))) == FAILED
    assert "Traceback" in capsys.readouterr().err


def test_a_stages_error_is_told_without_the_stage(capsys: pytest.CaptureFixture[str]) -> None:
    failed = StageFailed("source", 0, "ConfigError", exit_code=2)
    failed.__cause__ = ConfigError("f.jsonl:3: broken")
    assert guarded(raising(failed)) == MISTAKE
    assert capsys.readouterr().err == "error: f.jsonl:3: broken\n"


def test_other_ends() -> None:
    assert guarded(lambda: DONE) == DONE
    assert guarded(raising(KeyboardInterrupt())) == INTERRUPTED


def test_output_that_cannot_be_written_is_a_failure() -> None:
    code = "from trainer.entry import guarded; raise SystemExit(guarded(lambda: print('x') or 0))"
    command = f'{sys.executable} -c "{code}" > /dev/full'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == FAILED
    assert "error: output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
