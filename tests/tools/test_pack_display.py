"""Progress where there is no terminal: lines, now and then."""

from __future__ import annotations

import sys

import pytest

from stages.corpus.pack import PackProgress
from tools.pack_display import Bar, Lines, display


def test_lines_tell_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines("pack", 4_000_000, every_s=0.0) as shown:
        shown(PackProgress(1_000_000, documents=10, tokens=250_000, quarantined=0))
        shown(PackProgress(2_000_000, documents=20, tokens=500_000, quarantined=3))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("pack: 1.0 MB of 4.0 MB, 250,000 tokens, ")
    assert "tokens/s" in first
    assert first.endswith(" left")
    assert ", 3 quarantined, " in second


def test_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines("pack", 1000, every_s=3600.0) as shown:
        for read in range(1000):
            shown(PackProgress(read, read, read, 0))
    assert capsys.readouterr().err == ""


def test_training_counts_documents(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines("train bpe:300", 1000, every_s=0.0) as shown:
        shown(PackProgress(500, documents=1234, tokens=0, quarantined=0))
    assert "1,234 documents, 0:00 left" in capsys.readouterr().err


def test_a_bar_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, expected in ((True, Bar), (False, Lines)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        assert isinstance(display("pack", 10), expected)
