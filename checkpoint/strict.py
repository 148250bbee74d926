"""Reading JSON that nobody vouches for: bounded, and every value's type and range checked where it is taken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeAlias

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

MAX_DEPTH = 100
MAX_INTEGER_DIGITS = 400


class Malformed(ValueError):
    """Bytes that this package cannot have written. The caller adds which file they came from."""


def encode(value: JSON) -> bytes:
    """Compact JSON, ASCII only. Raises ValueError for nan and infinities, which JSON does not have."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def decode(data: bytes | memoryview, what: str) -> JSON:
    """Parse JSON; `what` names it in errors. Depth is bounded by the parser's own recursion limit here, and by
    `MAX_DEPTH` where trees are walked.

    Raises:
        Malformed: no JSON, not ASCII, nested too deep, or with an integer of too many digits.
    """
    try:
        value: JSON = json.loads(str(data, "ascii"), parse_int=_integer, parse_constant=_no_constant)
    except RecursionError as error:
        raise Malformed(f"{what} is nested too deep") from error
    except ValueError as error:
        raise Malformed(f"{what} is not the JSON that was written: {error}") from error
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise Malformed(f"an integer of {len(text)} digits")
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise Malformed(f"{text} is not JSON")


def mapping(value: JSON, what: str) -> Mapping[str, JSON]:
    if not isinstance(value, Mapping):
        raise Malformed(f"{what} must be an object, found {type(value).__name__}")
    return value


def sequence(value: JSON, what: str, *, most: int) -> Sequence[JSON]:
    if not isinstance(value, list):
        raise Malformed(f"{what} must be a list, found {type(value).__name__}")
    if len(value) > most:
        raise Malformed(f"{what} has {len(value)} entries, at most {most} make sense")
    return value


def integer(value: JSON, what: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Malformed(f"{what} must be an integer, found {value!r}"[:200])
    if not least <= value <= most:
        raise Malformed(f"{what} must be in [{least}, {most}], found {value}"[:200])
    return value


def optional(value: JSON, what: str, *, least: int = 0) -> int | None:
    return None if value is None else integer(value, what, least=least)


def number(value: JSON, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Malformed(f"{what} must be a number, found {value!r}"[:200])
    try:
        return float(value)
    except OverflowError as error:
        raise Malformed(f"{what} is out of range") from error


def text(value: JSON, what: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{what} must be text, found {value!r}"[:200])
    return value
