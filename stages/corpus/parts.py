"""Dividing one pack among machines: whole files, in order, so that the parts' documents end to end are the corpus's."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self

from stages.inputs.scan import Inputs


@dataclass(frozen=True, slots=True)
class Part:
    """Part `index` of `of`, counted from 1."""

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.of:
            raise ValueError(
                f"a part is one of 1/{self.of} to {self.of}/{self.of}, got {self.index}/{self.of}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `2/8`. Raises ValueError."""
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if match is None:
            raise ValueError(f"expected i/n, such as 2/8, got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    def of_inputs(self, inputs: Inputs) -> Inputs:
        """The files that begin within this part's share of all bytes; none where there are more parts than that."""
        total = max(inputs.bytes, 1)
        chosen = []
        before = 0
        for file in inputs.files:
            # Empty files at the very end begin where the last byte lies.
            if min(before, total - 1) * self.of // total == self.index - 1:
                chosen.append(file)
            before += file.bytes
        return replace(inputs, files=tuple(chosen))
