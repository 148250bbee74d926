"""An item's `resume` in a plan that holds state of its own.

In a plan of a source and maps alone it is the source's state, untouched. Where stages hold state (folds, and maps
that drop items and count them), each of them puts its own beside it as the item passes:

    {"source": the source's state, "stages": {name: the stage's state after this item, ...}}
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import StateMismatch
from .item import JSON, State


def source_part(at: State | None, stateful: Sequence[str]) -> State | None:
    """The source's part of `at`. StateMismatch: `at` is not a state of a plan with these stateful stages."""
    if at is None or not stateful:
        return at
    source, stages = at.get("source"), at.get("stages")
    if set(at) != {"source", "stages"} or not isinstance(stages, dict) or not isinstance(source, dict | None):
        raise StateMismatch(
            f"the state holds {', '.join(at) or 'nothing'}; expected 'source' and 'stages', as items of this plan "
            f"carry them, because its stages {', '.join(stateful)} hold state: start at an item's `resume`"
        )
    if set(stages) != set(stateful):
        raise StateMismatch(
            f"the state is of a plan whose stages {', '.join(stages) or '(none)'} hold state; in this plan it is "
            f"{', '.join(stateful)}: start the plan that the state came from"
        )
    return source


def stage_part(at: State | None, name: str) -> JSON:
    """The state of the stage `name` in an `at` that `source_part` has accepted; None at the beginning."""
    if at is None:
        return None
    stages = at["stages"]
    assert isinstance(stages, dict)
    return stages[name]


def upstream_part(at: State | None, before: Sequence[str]) -> State:
    """What an item would have carried on its arrival at a stage whose stateful predecessors are `before`."""
    if at is None:
        return {"source": None, "stages": {}}
    return {"source": at["source"], "stages": {name: stage_part(at, name) for name in before}}


def from_source(state: State) -> State:
    """An item's `resume` as it leaves the source of a plan with stateful stages."""
    return {"source": state, "stages": {}}


def with_stage(resume: State, name: str, state: JSON) -> State:
    """`resume` with the state of the stage `name` added."""
    stages = resume["stages"]
    assert isinstance(stages, dict)
    return {"source": resume["source"], "stages": {**stages, name: state}}
