"""Chats: what is said, what is trained, and that it is tokenised as one text."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from stages.chat import ChatSpec, EncodeChats, EncodedChats, Rendered, render
from stages.chat_template import ChatError, ChatTemplate
from stages.errors import TokenizerError
from stages.inputs.record import Refused
from stages.tokenise import TextTokenizer, TrainSpec, train
from tests.contracts.engine import MapContract

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for m in messages %}\n{%- if m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endif %}{% endfor %}"
)
UNMARKED_END = MARKED.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
BRACKETS = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
CHAT = {
    "messages": [
        {"role": "user", "content": "How far is it? "},
        {"role": "assistant", "content": "Nine miles, sir."},
        {"role": "user", "content": "Wörks?", "name": None},
        {"role": "assistant", "content": "It does. 你好 🙂"},
    ]
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, TOKENS, "test")


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    made = Tokenizer.from_str(
        train(TrainSpec(320), ["How far is it? Nine miles, sir. It does."] * 9).decode()
    )
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return TextTokenizer(made.to_str().encode(), "test")


def pieces(tokenizer: TextTokenizer, chats: EncodedChats) -> list[str]:
    """What is trained, run by run."""
    runs = np.split(chats.tokens, np.flatnonzero(np.diff(chats.loss_mask)) + 1)
    masks = np.split(chats.loss_mask, np.flatnonzero(np.diff(chats.loss_mask)) + 1)
    return [
        tokenizer.tokenizer.decode(run.tolist(), skip_special_tokens=False)
        for run, mask in zip(runs, masks, strict=True)
        if mask.all()
    ]


@pytest.mark.parametrize("source", [CHATML, MARKED, UNMARKED_END], ids=["chatml", "marked", "unmarked_end"])
def test_the_models_turns_and_what_ends_them_are_trained(tokenizer: TextTokenizer, source: str) -> None:
    chats = EncodeChats(tokenizer, template(source), ChatSpec())([CHAT])
    said = pieces(tokenizer, chats)
    assert said[0] == "Nine miles, sir.<|im_end|>"
    assert "".join(said[1:]) == "It does. 你好 🙂<|im_end|><|endoftext|>"
    assert chats.bad == ()
    assert chats.lengths.tolist() == [len(chats.tokens)]


def test_a_turn_that_the_eos_ends_gets_no_second_one() -> None:
    made = Tokenizer.from_str(train(TrainSpec(300), ["x"]).decode())
    made.add_special_tokens(["<|im_end|>"])
    tokenizer = TextTokenizer(made.to_str().encode(), "test", eos="<|im_end|>")
    chats = EncodeChats(tokenizer, template(BRACKETS), ChatSpec())([CHAT])
    assert pieces(tokenizer, chats) == [" Nine miles, sir.<|im_end|>", " It does. 你好 🙂<|im_end|>"]
    assert chats.tokens[-1] == made.token_to_id("<|im_end|>")
    assert chats.tokens[-2] != chats.tokens[-1]


def test_the_last_turn_alone_may_be_trained(tokenizer: TextTokenizer) -> None:
    chats = EncodeChats(tokenizer, template(MARKED), ChatSpec(trained="last"))([CHAT])
    assert "".join(pieces(tokenizer, chats)) == "It does. 你好 🙂<|im_end|><|endoftext|>"


def test_a_template_that_says_earlier_turns_in_another_way_is_told_so(tokenizer: TextTokenizer) -> None:
    thinking = {
        "messages": [
            *({"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm</think>b"}),
            *({"role": "user", "content": "c"}, {"role": "assistant", "content": "<think>\nhm</think>d"}),
        ]
    }
    found = render(thinking, template(FORGETFUL), ChatSpec())
    assert isinstance(found, Refused)
    assert "first 2 messages in another way when more follow" in found.detail
    last = render(thinking, template(FORGETFUL), ChatSpec(trained="last"))
    assert isinstance(last, Rendered)
    assert [last.text[slice(*span)] for span in last.spans] == ["hm</think>d<|im_end|>\n"]
    # What begins a reply and is not what was said is none of the model's words.
    bare = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    rendered = render(bare, template(FORGETFUL), ChatSpec())
    assert isinstance(rendered, Rendered)
    assert [rendered.text[slice(*span)] for span in rendered.spans] == ["b<|im_end|>\n"]


def test_prompts_and_completions_are_one_text(tokenizer: TextTokenizer) -> None:
    chats = EncodeChats(tokenizer, None, ChatSpec())([{"prompt": "Nine mi", "completion": "les, sir."}])
    ids = tokenizer.tokenizer.encode("Nine miles, sir.", add_special_tokens=False).ids
    assert chats.tokens.tolist() == [*ids, tokenizer.tokenizer.token_to_id("<|endoftext|>")]
    # The token that reaches over the border is trained.
    assert pieces(tokenizer, chats) == [" miles, sir.<|endoftext|>"]
    spoken = {"prompt": CHAT["messages"][:3], "completion": CHAT["messages"][3:]}
    for source in (CHATML, MARKED):
        chats = EncodeChats(tokenizer, template(source), ChatSpec())([spoken])
        assert "".join(pieces(tokenizer, chats)) == "It does. 你好 🙂<|im_end|><|endoftext|>"


def test_blanks_that_a_tokenizer_leaves_out_of_its_offsets_are_trained() -> None:
    made = Tokenizer.from_str(train(TrainSpec(260), ["x"]).decode())
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    chats = EncodeChats(TextTokenizer(made.to_str().encode(), "test"), None, ChatSpec())(
        [{"prompt": "a ", "completion": "  b\n\n"}]
    )
    assert chats.loss_mask.tolist() == [False, False, True, True, True, True, True, True]


def test_a_long_chat_is_cut_at_its_end_and_counted(tokenizer: TextTokenizer) -> None:
    whole = EncodeChats(tokenizer, template(CHATML), ChatSpec())([CHAT])
    keep = len(whole.tokens) - 5
    cut = EncodeChats(tokenizer, template(CHATML), ChatSpec(max_tokens=keep))(
        [CHAT, {"prompt": "x", "completion": "y"}]
    )
    assert cut.lengths.tolist() == [keep, 3]
    assert cut.tokens[:keep].tolist() == whole.tokens[:keep].tolist()
    assert (cut.cut_chats, cut.cut_tokens) == (1, 5)
    none = EncodeChats(tokenizer, template(CHATML), ChatSpec(max_tokens=5))([CHAT])
    assert [(index, why.reason) for index, why in none.bad] == [(0, "broken_chat")]
    assert "first 5 tokens" in none.bad[0][1].detail
    assert len(none.tokens) == len(none.loss_mask) == len(none.lengths) == 0


text = st.text(max_size=12)


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(text, text.filter(str.strip)), min_size=1, max_size=4))
def test_the_tokens_are_those_of_the_text_and_the_mask_those_of_the_spans(
    tokenizer: TextTokenizer, turns: list[tuple[str, str]]
) -> None:
    messages = [
        {"role": role, "content": content}
        for turn in turns
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
    rendered = render({"messages": messages}, template(CHATML), ChatSpec())
    marked = render(
        {"messages": messages},
        template(MARKED.replace("{{ bos_token }}", "").replace(" | trim", "")),
        ChatSpec(),
    )
    assert isinstance(rendered, Rendered)
    assert isinstance(marked, Rendered)
    assert [rendered.text[slice(*s)].removesuffix("\n") for s in rendered.spans] == [
        f"{said}<|im_end|>" for _, said in turns
    ]
    assert [marked.text[slice(*s)] for s in marked.spans] == [f"{said}<|im_end|>" for _, said in turns]
    chats = EncodeChats(tokenizer, template(CHATML), ChatSpec())([{"messages": messages}])
    ids = Tokenizer.from_str(tokenizer.data.decode()).encode(rendered.text, add_special_tokens=False).ids
    assert chats.tokens.tolist()[: len(ids)] == ids
    assert len(chats.tokens) == len(chats.loss_mask) == len(ids) + 1


@pytest.mark.parametrize(
    ("record", "reason", "says"),
    [
        ([], "wrong_type", "expected an object"),
        ({"text": "x"}, "missing_field", "expected messages, or prompt and completion; it has 'text'"),
        ({"messages": "x"}, "broken_chat", 'expected messages, found "x"'),
        ({"messages": []}, "broken_chat", "expected messages"),
        ({"messages": [{"role": "user"}]}, "broken_chat", "message 1: no content"),
        (
            {"messages": [{"content": "x"}]},
            "broken_chat",
            "message 1: expected an object with role and content",
        ),
        ({"messages": [{"role": "user", "content": "x"}]}, "broken_chat", "nothing would be trained"),
        ({"messages": [{"role": "assistant", "content": 3}]}, "broken_chat", "the chat template refuses it"),
        ({"messages": [{"role": "assistant", "content": "\ud800"}]}, "broken_chat", "surrogate"),
        ({"messages": [{"role": "assistant", "content": "\ufdd0"}]}, "broken_chat", "U+FDD0"),
        ({"prompt": "x", "completion": ""}, "empty_text", "completion is empty"),
        ({"prompt": "\udc00", "completion": "x"}, "invalid_utf8", "surrogate"),
        ({"prompt": "x"}, "missing_field", "it has 'prompt'"),
        ({"prompt": "x", "completion": 3}, "broken_chat", "prompt: expected messages"),
    ],
)
def test_records_that_are_no_chats_say_why(
    tokenizer: TextTokenizer, record: object, reason: str, says: str
) -> None:
    good = {"prompt": "x", "completion": "y"}
    chats = EncodeChats(tokenizer, template(CHATML), ChatSpec())([good, record, good])
    assert chats.lengths.tolist() == [3, 3]
    ((index, why),) = chats.bad
    assert (index, why.reason) == (1, reason)
    assert says in why.detail


def test_a_template_may_refuse_a_chat() -> None:
    with pytest.raises(ChatError, match="roles must alternate"):
        template(BRACKETS).render([{"role": "system", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__x = 1 %}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.x }}",
        "{% include '/etc/passwd' %}",
        "{{ strftime_now('%Y') }}",
        "{% for i in range(999999999) %}{% endfor %}",
    ],
)
def test_templates_reach_nothing(source: str) -> None:
    with pytest.raises(ChatError, match="the chat template refuses it"):
        print(template(source).render([{"role": "user", "content": "x"}]))


def test_the_date_is_told_where_it_is_given() -> None:
    source = "{{ strftime_now('%Y-%m-%d') if strftime_now is defined else 'never' }}"
    assert template(source).render([]) == "never"
    assert ChatTemplate(source, {}, "test", date(2024, 7, 26)).render([]) == "2024-07-26"


def test_a_template_is_found_beside_its_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(TokenizerError, match="no chat template"):
        ChatTemplate.beside(path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps({"chat_template": "{{ eos_token }}", "eos_token": {"content": "<e>"}, "pad_token": None})
    )
    assert ChatTemplate.beside(path).render([]) == "<e>"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.beside(path).render([]) == "d"
    (tmp_path / "chat_template.jinja").write_text("j")
    assert ChatTemplate.beside(path).render([]) == "j"
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(TokenizerError, match="the chat template, line 1"):
        ChatTemplate.beside(path)
    config.write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: cannot be read"):
        ChatTemplate.beside(path)


@pytest.mark.parametrize("source", [CHATML, MARKED, UNMARKED_END, BRACKETS, FORGETFUL])
def test_says_what_transformers_says(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    for reply in (False, True):
        ours = template(source).render(CHAT["messages"][:3], [{"name": "f"}], reply=reply)
        theirs, _ = render_jinja_template(
            [CHAT["messages"][:3]],
            tools=[{"name": "f"}],
            chat_template=source,
            add_generation_prompt=reply,
            **TOKENS,
        )
        assert ours == theirs[0]
    if "generation %" in source:
        _, spans = template(source).spoken(CHAT["messages"])
        _, found = render_jinja_template(
            [CHAT["messages"]], chat_template=source, return_assistant_tokens_mask=True, **TOKENS
        )
        assert spans == found[0]


@pytest.mark.parametrize(("name", "value"), [("trained", "none"), ("max_tokens", 0)])
def test_a_spec_is_checked_once(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        ChatSpec(**{name: value})  # type: ignore[arg-type]  # that is what is tested


class TestEncodeChats(MapContract):
    @pytest.fixture(autouse=True)
    def _tokenizer(self, tokenizer: TextTokenizer) -> None:
        self._made = tokenizer

    def make_map(self) -> EncodeChats:
        return EncodeChats(self._made, template(CHATML), ChatSpec())

    def values(self) -> list[object]:
        return [[CHAT], [{"prompt": "a", "completion": "b"}, {}], []]

    def plain(self, value: object) -> object:
        assert isinstance(value, EncodedChats)
        return value.tokens.tolist(), value.loss_mask.tolist(), value.lengths.tolist(), value.bad
