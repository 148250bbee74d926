"""Tokenising: what is stored is what the tokenizer says of each text alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from stages.corpus import SpecialToken
from stages.errors import TokenizerError
from stages.inputs import Group
from stages.tokenise import Encode, TextTokenizer, TrainSpec, train

TRAINING = ["the cat sat on the mat", "def f(x):\n    return x", "äöü 😀 \0 tabs\tand\r\nlines"] * 20
TRAINED = train(TrainSpec(400), TRAINING)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(TRAINED, "trained")


anything = st.text(st.characters(codec="utf-8"), max_size=40)
awkward = st.sampled_from(
    ["\0", "\r\n", "😀", "<|endoftext|>", " ", "\ufeff", "﷽", "a" * 300, "\u200b", "e\u0301"]
)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.one_of(anything, awkward), max_size=12))
def test_ids_are_those_of_each_text_alone_and_an_eos(texts: list[str]) -> None:
    tokenizer = TextTokenizer(TRAINED, "trained")
    serial = Tokenizer.from_str(TRAINED.decode())
    serial.encode_special_tokens = True
    tokens, lengths = tokenizer.encode(texts)
    expected = [[*serial.encode(text, add_special_tokens=False).ids, 0] for text in texts]
    assert lengths.tolist() == [len(ids) for ids in expected]
    assert tokens.tolist() == [token for ids in expected for token in ids]
    assert tokens.dtype == np.uint16


def test_a_trained_tokenizer_loses_nothing(tokenizer: TextTokenizer) -> None:
    for text in ("any Ünïcode 漢字 😀", "\r\n\t\0", "  two  spaces "):
        tokens, _ = tokenizer.encode([text])
        assert tokenizer.tokenizer.decode(tokens[:-1].tolist()) == text
    assert tokenizer.meta.eos == SpecialToken("<|endoftext|>", 0)
    assert tokenizer.meta.vocab_size <= 400


def test_training_is_deterministic() -> None:
    assert train(TrainSpec(400), iter(TRAINING)) == TRAINED


@pytest.mark.parametrize("text", ["bpe", "bpe:", "bpe:256", "bpe:-1", "wordpiece:1000", "bpe:1e4"])
def test_a_training_spec_says_what_it_expects(text: str) -> None:
    with pytest.raises(TokenizerError, match="bpe:SIZE"):
        TrainSpec.parse(text)
    assert str(TrainSpec.parse("bpe:8192")) == "bpe:8192"


def changed(**parts: object) -> bytes:
    return json.dumps(json.loads(TRAINED) | parts).encode()


def test_limits_and_padding_of_a_model_do_not_reach_the_corpus() -> None:
    limited = Tokenizer.from_str(TRAINED.decode())
    limited.enable_truncation(4)
    limited.enable_padding(length=8)
    texts = ["a", "the cat sat on the mat and more"]
    tokens, lengths = TextTokenizer(limited.to_str().encode(), "limited").encode(texts)
    expected, expected_lengths = TextTokenizer(TRAINED, "trained").encode(texts)
    assert tokens.tolist() == expected.tolist()
    assert lengths.tolist() == expected_lengths.tolist()


@pytest.mark.parametrize("token", ["</s>", "<eos>", "<|end_of_text|>", "[SEP]"])
def test_finds_the_usual_ends(token: str) -> None:
    other = Tokenizer.from_str(TRAINED.decode().replace("<|endoftext|>", token))
    assert TextTokenizer(other.to_str().encode(), "other").meta.eos == SpecialToken(token, 0)


def test_an_end_can_be_named_or_left_out() -> None:
    named = TextTokenizer(TRAINED, "trained", "a")
    assert named.meta.eos is not None
    assert named.meta.eos.token == "a"
    none = TextTokenizer(TRAINED, "trained", "none")
    tokens, lengths = none.encode(["the", ""])
    assert none.meta.eos is None
    assert lengths[1] == 0
    assert tokens.tolist() == none.tokenizer.encode("the").ids
    with pytest.raises(TokenizerError, match=r"no token '<x>'.*--eos none"):
        TextTokenizer(TRAINED, "trained", "<x>")
    without = TRAINED.decode().replace("<|endoftext|>", "<nothing>").encode()
    with pytest.raises(TokenizerError, match=r"--eos TOKEN"):
        TextTokenizer(without, "without")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"root:x:0:0", "no tokenizer.json"),
        (b"{}", "no tokenizer.json"),
        (b"\xff\xfe", "not text"),
        (Tokenizer(models.BPE()).to_str().encode(), "has no tokens"),
    ],
)
def test_what_is_no_tokenizer_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(TokenizerError, match=says) as error:
        TextTokenizer(data, "some/file")
    assert "some/file" in str(error.value)
    assert error.value.exit_code == 2


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"missing\.json: cannot be read: No such file"):
        TextTokenizer.from_file(tmp_path / "missing.json")


def test_a_large_vocabulary_takes_32_bits() -> None:
    words = {f"w{n}": n for n in range(70_000)} | {"</s>": 70_000}
    large = Tokenizer(models.WordLevel(words, unk_token="w0"))
    large.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = TextTokenizer(large.to_str().encode(), "large")
    assert (tokenizer.dtype, tokenizer.meta.vocab_size) == ("uint32", 70_001)
    tokens, _ = tokenizer.encode(["w69999 w3"])
    assert tokens.dtype == np.uint32
    assert tokens.tolist() == [69_999, 3, 70_000]


def test_groups_pass_on_what_they_carry(tokenizer: TextTokenizer) -> None:
    group = Group(texts=(), bad=(), finished=(), read_bytes=7, text_bytes=5 << 20, provenance="x:1")
    encoded = Encode(tokenizer)(group)
    assert (encoded.tokens.size, encoded.lengths.size, encoded.read_bytes) == (0, 0, 7)


def test_text_that_spells_a_special_token_is_text() -> None:
    """Else a document could end itself."""
    text = "before<|endoftext|>after"
    plain = TextTokenizer(TRAINED, "trained")
    ids = plain.encode([text])[0][:-1].tolist()
    assert 0 not in ids
    assert plain.tokenizer.decode(ids) == text
    parsing = TextTokenizer(TRAINED, "trained", parse_special=True)
    assert parsing.encode([text])[0].tolist().count(0) == 2


def test_a_bos_begins_each_document() -> None:
    tokenizer = TextTokenizer(TRAINED, "trained", bos="<|endoftext|>")
    tokens, lengths = tokenizer.encode(["the cat", ""])
    expected, _ = TextTokenizer(TRAINED, "trained").encode(["the cat"])
    assert tokens.tolist() == [0, *expected.tolist(), 0, 0]
    assert lengths.tolist() == [1 + expected.size, 2]
    with pytest.raises(TokenizerError, match="no token '<s>' to begin documents with"):
        TextTokenizer(TRAINED, "trained", bos="<s>")


def test_hashes_are_of_the_text_alone(tokenizer: TextTokenizer) -> None:
    encoded = Encode(tokenizer, hashed=True)(Group(("a", "b", "a"), (), (), 3, 3, "x:1"))
    assert encoded.hashes is not None
    assert encoded.hashes.shape == (3, 2)
    assert encoded.hashes.tolist()[0] == encoded.hashes.tolist()[2] != encoded.hashes.tolist()[1]
