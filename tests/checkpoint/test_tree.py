from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import NotStorable, Tree
from checkpoint.strict import Malformed, decode, encode
from checkpoint.tree import from_json, plain_json, to_json
from tests.checkpoint.states import Tensor, same, trees


@given(trees())
def test_a_tree_survives_its_json(tree: dict[str, Tree]) -> None:
    found: list[Tensor] = []
    names: list[str] = []

    def keep(name: str, value: object) -> int | None:
        if not isinstance(value, Tensor):
            return None
        found.append(value)
        names.append(name)
        return len(found) - 1

    data = decode(encode(to_json(tree, "part", keep)), "a tree")
    given_names: list[str] = []

    def give(name: str, index: int) -> Tensor:
        given_names.append(name)
        return found[index]

    assert same(from_json(data, give, "part"), tree)
    assert given_names == names
    assert len(set(names)) == len(names)


def test_names_are_escaped_as_in_rfc_6901() -> None:
    names: list[str] = []
    to_json(
        {"a/b": {"~": [0, object()]}, 3: object()},
        "part",
        lambda name, value: names.append(name) or len(names),
    )
    assert names == ["part/a~1b/~0/1", "part/3"]


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"a": [1, {2, 3}]}, r"part/a/1: a builtins.set"),
        ({"a": b"raw"}, r"part/a: a builtins.bytes"),
        ({"a": {(1, 2): 3}}, r"part/a: the key \(1, 2\)"),
        ({"a": {True: 3}}, r"part/a: the key True"),
        ({"a": {1: 3, "1": 4}}, r"part/a: the keys '1' and 1 have the same path"),
        ({"a": 2**1024}, r"part/a: an integer of 1025 bits"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_path(tree: object, says: str) -> None:
    with pytest.raises(NotStorable, match=says):
        to_json(tree, "part", lambda name, value: None)


def test_a_tree_that_holds_itself_is_refused() -> None:
    tree: list[object] = []
    tree.append(tree)
    with pytest.raises(NotStorable, match="does it hold itself"):
        to_json(tree, "part", lambda name, value: None)


@pytest.mark.parametrize(
    "data",
    [
        {"$": "infinite"},
        {"$": True},
        {"$": None},
        {"$": 1, "more": 2},
        {"$": [[1, 2, 3]]},
        {"$": [[1.5, 2]]},
        {"$": [7]},
    ],
)
def test_json_that_no_tree_has_is_malformed(data: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        from_json({"a": data}, lambda name, index: index)  # type: ignore[dict-item]


def test_deep_json_is_malformed_not_a_crash() -> None:
    with pytest.raises(Malformed, match="deep"):
        decode(b"[" * 1_000_000, "a bomb")
    deep = decode(b"[" * 200 + b"]" * 200, "a deep list")
    with pytest.raises(Malformed, match="deeper than"):
        from_json(deep, lambda name, index: index)


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b"1" * 401, b"\xff", b"", b"{"])
def test_what_is_not_our_json_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        decode(text, "a file")


def test_plain_data_leaves_tensors_out() -> None:
    data = {"a": {"$": 0}, "b": [1, {"$": 1}], "c": {"$": [[5, {"$": "inf"}]]}}
    assert plain_json(data) == {"b": [1, None], "c": {"5": math.inf}}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_survive_exactly(value: float) -> None:
    assert repr(decode(encode(value), "a float")) == repr(value)
