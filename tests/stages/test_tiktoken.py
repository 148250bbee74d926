"""Rank files as tokenizer.json: the ids that tiktoken's own algorithm gives, written out here as plainly as can be."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.errors import TokenizerError
from stages.tiktoken import PATTERNS, Special, byte_letters, converted, last_parts, parse_ranks
from stages.tokenise import TrainSpec, train

TEXTS = [
    "The quick brown fox can't jump; it's 12345 dogs' fault, they'LL say.",
    "Übergrößenträger naïve façade, Ελληνικά κείμενα, Русский текст с ёлками.",
    "漢字とかなの文章です。中文文本也在这里,没有空格。한국어 문장입니다.",
    "العربية من اليمين إلى اليسار, עברית, हिन्दी में देवनागरी, ภาษาไทยไม่มีช่องว่าง",
    "def f(x):\n\treturn  x ** 2   # comment\r\n\r\n    if True:\n",
    "😀👩‍👩‍👧‍👦 e\u0301 \u200b\ufeff\0 \x1f ﷽ camelCaseHTTPServer ΑΣ ǅ aʰ",
]


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    """Ranks that a real training has given: bytes first, then merges in their order."""
    letters = {letter: byte for byte, letter in enumerate(byte_letters())}
    trained = Tokenizer.from_str(train(TrainSpec(1500), TEXTS * 3).decode())
    vocabulary = sorted((number, token) for token, number in trained.get_vocab().items())
    tokens = [
        bytes(letters[letter] for letter in token) for _, token in vocabulary if "endoftext" not in token
    ]
    # One that no merging leads to, as published rank files have them too: it is found only as a whole piece.
    return {token: rank for rank, token in enumerate([*dict.fromkeys(tokens), b" zqzqzq"])}


def plainly(text: str, ranks: Mapping[bytes, int], pattern: str) -> list[int]:
    """Tiktoken's algorithm."""
    ids: list[int] = []
    for piece in regex.findall(pattern, text):
        data = piece.encode()
        if data in ranks:
            ids.append(ranks[data])
            continue
        parts = [data[at : at + 1] for at in range(len(data))]
        while len(parts) > 1:
            rank, at = min(
                (ranks.get(parts[at] + parts[at + 1], len(ranks)), at) for at in range(len(parts) - 1)
            )
            if rank == len(ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [ranks[part] for part in parts]
    return ids


@pytest.mark.parametrize("name", PATTERNS)
def test_ids_are_tiktokens(ranks: dict[bytes, int], name: str) -> None:
    tokenizer = Tokenizer.from_str(converted(ranks, PATTERNS[name], ()).decode())

    @settings(max_examples=100, deadline=None)
    @given(
        st.one_of(st.text(st.characters(codec="utf-8"), max_size=40), st.sampled_from([*TEXTS, " zqzqzq x"]))
    )
    def check(text: str) -> None:
        ids = tokenizer.encode(text).ids
        assert ids == plainly(text, ranks, PATTERNS[name])
        assert tokenizer.decode(ids) == text

    check()


def test_special_tokens_have_the_ids_that_are_given(ranks: dict[bytes, int]) -> None:
    specials = (Special("<|end|>", len(ranks) + 5), Special("<|begin|>", len(ranks)))
    tokenizer = Tokenizer.from_str(converted(ranks, PATTERNS["cl100k"], specials).decode())
    assert tokenizer.encode("<|begin|>a<|end|>").ids == [len(ranks), ranks[b"a"], len(ranks) + 5]
    for taken in (Special("<|x|>", 3), Special("<|end|>", len(ranks) + 7)):
        with pytest.raises(TokenizerError):
            converted(ranks, PATTERNS["gpt2"], (*specials, taken))


def test_the_last_two_parts_of_a_token() -> None:
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"bc": 4, b"abc": 5, b"cab": 6, b"ccc": 7}
    assert last_parts(b"abc", ranks) == (b"ab", b"c")
    assert last_parts(b"cab", ranks) == (b"c", b"ab")
    assert last_parts(b"ccc", ranks) is None


def lines(ranks: Mapping[bytes, int]) -> list[bytes]:
    return [base64.b64encode(token) + f" {rank}".encode() for token, rank in ranks.items()]


def test_rank_files_are_read_and_checked(ranks: dict[bytes, int]) -> None:
    good = lines(ranks)
    assert parse_ranks(b"\n".join(good) + b"\n", "x") == ranks
    for bad, says in (
        ([*good, b"nonsense"], f"x:{len(good) + 1}: expected a token in base64"),
        ([*good, b"%%% 9999"], "expected a token in base64"),
        ([*good, base64.b64encode(b"new one") + b" 7"], "has rank 7 of line 8"),
        ([*good, good[0].split()[0] + b" 99999"], "is there already"),
        (good[1:], "has no token for byte"),
    ):
        with pytest.raises(TokenizerError, match=says):
            parse_ranks(b"\n".join(bad), "x")


@pytest.mark.parametrize("text", ["", "=5", "<|x|>", "<|x|>=", "<|x|>=-1"])
def test_a_special_token_says_what_it_expects(text: str) -> None:
    with pytest.raises(TokenizerError, match="TOKEN=ID"):
        Special.parse(text)
    assert Special.parse("<a=b>=5") == Special("<a=b>", 5)
