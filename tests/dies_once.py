"""`python -m trainer`, but rank 1 dies by SIGKILL after a step, once: under torchrun, which starts it again.

usage: dies_once.py MARK STEP ARGUMENTS…; MARK is made by the one that dies.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.trainer_process import SignalAfterStep


def main() -> int:
    from trainer.__main__ import main as train
    from trainer.entry import guarded

    mark, step, *arguments = sys.argv[1:]
    if os.environ["RANK"] == "1" and not Path(mark).exists():
        Path(mark).touch()
        SignalAfterStep(int(step))()
    return guarded(lambda: train(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
