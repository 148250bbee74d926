"""Sentencepiece models as tokenizer.json: the ids are sentencepiece's own."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.errors import TokenizerError
from stages.sentencepiece import SentencePieceModel, converted
from stages.tokenise import TextTokenizer
from tools.tokenizer import main
from trainer.entry import DONE, MISTAKE, guarded

TEXTS = (
    "the quick brown fox jumps over the lazy dog; naïve café, Straße, Übergrößen",
    "привет мир, как дела? ελληνικά שלום مرحبا بالعالم नमस्ते दुनिया",
    "漢字仮名交じり文 日本語 한국어 안녕하세요 😀 👩‍👩‍👧 ﬁne ① Ⅳ e\u0301\u0323tude",
    "def f(x):\n\treturn x ** 2  # 12345 3.14\r\n",
    "",
    " ",
    "  a  b ▁ ",
    "▁▁",
    "\x00\u200b\ufeff\u3000\u00a0",
    "<s> hi </s> <unk> <0x41>",
    "unknown: ᚠᚢᚦ 𐍈 🏳️‍🌈",
)


def trained(**settings: object) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[:4] * 20),
        model_writer=out,
        **{
            "vocab_size": 450,
            "model_type": "bpe",
            "normalization_rule_name": "identity",
            "hard_vocab_limit": False,
            "minloglevel": 2,
            "num_threads": 1,
            **settings,
        },
    )
    return out.getvalue()


MODELS = [
    trained(byte_fallback=fallback, remove_extra_whitespaces=extra, add_dummy_prefix=prefix)
    for fallback in (True, False)
    for extra in (True, False)
    for prefix in (True, False)
]
THEIRS = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in MODELS]
OURS = [Tokenizer.from_str(converted(SentencePieceModel.parse(model, "m")).decode()) for model in MODELS]
for tokenizer in OURS:
    tokenizer.encode_special_tokens = True  # as tools.pack has it: spelled-out special tokens are text


@pytest.mark.parametrize("which", range(len(MODELS)))
def test_ids_are_equal(which: int) -> None:
    for text in TEXTS:
        assert OURS[which].encode(text, add_special_tokens=False).ids == THEIRS[which].encode(text), text


@settings(max_examples=300, deadline=None)
@given(
    which=st.integers(0, len(MODELS) - 1),
    text=st.text() | st.text(alphabet=" ▁ab<s>é漢\n") | st.lists(st.sampled_from(TEXTS)).map(" ".join),
)
def test_ids_of_any_text_are_equal(which: int, text: str) -> None:
    assert OURS[which].encode(text, add_special_tokens=False).ids == THEIRS[which].encode(text)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.model").write_bytes(MODELS[3])
    out = tmp_path / "tokenizer.json"
    assert guarded(lambda: main(["convert", str(tmp_path / "m.model"), "--out", str(out)])) == DONE
    assert TextTokenizer.from_file(out, "none").meta.vocab_size == THEIRS[3].vocab_size()
    arguments = ["convert", str(tmp_path / "m.model"), "--out", str(tmp_path / "o"), "--special", "<x>=9"]
    assert guarded(lambda: main(arguments)) == MISTAKE
    assert "--pattern" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model_type": "unigram", "vocab_size": 200}, "only BPE"),
        ({"normalization_rule_name": "nmt_nfkc"}, "nmt_nfkc"),
        ({"user_defined_symbols": ["<x>"]}, "user-defined"),
        ({"treat_whitespace_as_suffix": True}, "marks spaces"),
    ],
)
def test_what_does_not_convert_is_refused(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(TokenizerError, match=reason):
        SentencePieceModel.parse(trained(**changed), "m")


@given(st.binary(max_size=200) | st.integers(0, len(MODELS[0]) - 1).map(lambda size: MODELS[0][:size]))
def test_what_is_no_model_is_refused(data: bytes) -> None:
    with pytest.raises(TokenizerError):
        SentencePieceModel.parse(data, "m")
