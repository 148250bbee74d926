from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    """Threads lose their turn between any two instructions, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
