"""The bench framework: sides take turns, ratios are of one round, the last line is JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stages.tokenise import TrainSpec
from tools.bench import pack, text
from tools.bench.__main__ import main
from tools.bench.rounds import run_rounds, to_json
from tools.bench.sides import Round, Settings, Side, Sides


def scripted(name: str, rates: list[float], seen: list[str]) -> Side:
    left = iter(rates)

    def side() -> Round:
        seen.append(name)
        rate = next(left)
        return Round(rate, {"wait_ms": rate / 2})

    return side


def test_sides_take_turns_and_ratios_are_of_one_round() -> None:
    seen: list[str] = []
    sides = Sides(
        "tokens/s",
        {
            "headrace": scripted("headrace", [10, 20, 90], seen),
            "limit": scripted("limit", [20, 20, 60], seen),
            "peer": scripted("peer", [5, 5, 5], seen),
        },
    )
    told: list[str] = []
    result = run_rounds("x", sides, 3, lambda side, _: told.append(side))
    assert seen == told
    assert seen == [
        *("headrace", "limit", "peer"),
        *("limit", "peer", "headrace"),
        *("peer", "headrace", "limit"),
    ]
    assert to_json([result]) == {
        "bench": "x",
        "unit": "tokens/s",
        "figures": {
            **{"headrace": 20, "limit": 20, "peer": 5},
            **{"headrace.wait_ms": 10, "limit.wait_ms": 10, "peer.wait_ms": 2.5},
        },
        "ratios": {"headrace/limit": 1.0, "headrace/peer": 4.0},
    }
    assert (result.ratios["headrace/limit"].low, result.ratios["headrace/limit"].high) == (0.5, 1.5)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Round(0.0)
    with pytest.raises(ValueError, match="headrace"):
        Sides("x/s", {"limit": lambda: Round(1.0), "peer": lambda: Round(1.0)})
    with pytest.raises(ValueError, match="rounds"):
        run_rounds("x", Sides("x/s", {"headrace": lambda: Round(1.0), "limit": lambda: Round(1.0)}), 0, print)


def test_ends_with_one_line_of_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def bench(settings: Settings) -> Iterator[Sides]:
        assert settings.workers == 3
        yield Sides("tokens/s", {"headrace": lambda: Round(9.0), "limit": lambda: Round(10.0)})

    monkeypatch.setattr(pack, "bench", bench)
    assert main(["pack", "--json", "--rounds", "2", "--workers", "3", "--cache", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "headrace/limit" in shown
    assert json.loads(shown.splitlines()[-1])["ratios"] == {"headrace/limit": 0.9}


def test_packing_and_its_limit_do_the_same_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(text, "BYTES", 1 << 20)
    monkeypatch.setattr(text, "VOCABULARY", TrainSpec(1000))
    with pack.bench(Settings(tmp_path, workers=2)) as sides:
        done = {name: side() for name, side in sides.sides.items()}
    assert set(done) == {"headrace", "limit"}
    assert done["headrace"].figures["tokens"] == done["limit"].figures["tokens"] > 100_000
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".zst"]
    lines = text.json_lines(tmp_path, 1 << 20)
    assert sum(len(document.encode()) for document in text.texts(lines)) >= 1 << 20
