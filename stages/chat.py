"""Chats and instructions: records to tokens, and to which of them are trained.

    record ─► one text, spans that are trained ─► tokenised once, whole ─► tokens, loss mask
    {"messages": [...]}            through the chat template; the model's turns are trained
    {"prompt", "completion"}       texts end to end, or messages through the template; the completion is trained

Tokenising the parts one by one would give other ids at their borders than the model meets when it is used. A token that
reaches over the border of a span belongs to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from stages.chat_template import ChatError, ChatTemplate, Message, Span
from stages.corpus.reader import Tokens
from stages.inputs.lines import is_encodable
from stages.inputs.record import Refused
from stages.tokenise import TextTokenizer

Trained: TypeAlias = Literal["all", "last"]


@dataclass(frozen=True, slots=True)
class ChatSpec:
    """What is trained of a chat, and how much of it is kept."""

    trained: Trained = "all"
    """All turns of the model, or its last one alone, where templates say earlier turns in another way."""
    max_tokens: int | None = None
    """A longer chat keeps its first tokens, so many: its end is cut, with the token that ends it. None cuts none."""

    def __post_init__(self) -> None:
        if self.trained not in ("all", "last"):
            raise ValueError(f"trained is all or last, got {self.trained!r}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as one text."""

    text: str
    spans: tuple[Span, ...]
    """What is trained, in characters: [start, stop), in order, not overlapping."""


@dataclass(frozen=True, slots=True)
class EncodedChats:
    """Chats end to end."""

    tokens: Tokens
    """Shape (sum of lengths,)."""
    loss_mask: NDArray[np.bool_]
    """Shape (sum of lengths,): True where the token is trained."""
    lengths: NDArray[np.uint32]
    """Shape (chats,)."""
    bad: tuple[tuple[int, Refused], ...]
    """Which of the records are none, and why."""
    cut_chats: int
    cut_tokens: int
    """What `max_tokens` has cut away."""


def render(record: object, template: ChatTemplate | None, spec: ChatSpec) -> Rendered | Refused:
    """One record as a text with spans. `template` may be None where prompts and completions are texts."""
    if not isinstance(record, dict):
        return Refused("wrong_type", f"expected an object, found {type(record).__name__}")
    try:
        if "messages" in record:
            return _chat(_messages(record, "messages"), 0, record.get("tools"), template, spec)
        if "prompt" in record and "completion" in record:
            return _completion(record, template, spec)
    except ChatError as error:
        return Refused("broken_chat", str(error))
    keys = ", ".join(map(repr, list(record)[:5])) or "no fields"
    return Refused("missing_field", f"expected messages, or prompt and completion; it has {keys}")


class EncodeChats:
    """Records of a list to EncodedChats. Pure; safe in several threads."""

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate | None, spec: ChatSpec) -> None:
        self._template = template
        self._spec = spec
        self._eos = tokenizer.meta.eos
        self._dtype = tokenizer.dtype
        self._tokenizer = _untrimmed(tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {id: token.content for id, token in added.items() if token.special}

    def __call__(self, records: Sequence[object]) -> EncodedChats:
        rendered = [render(record, self._template, self._spec) for record in records]
        good = [chat for chat in rendered if isinstance(chat, Rendered)]
        encodings = iter(self._tokenizer.encode_batch([chat.text for chat in good], add_special_tokens=False))
        parts: list[tuple[Tokens, NDArray[np.bool_]]] = []
        bad: list[tuple[int, Refused]] = []
        cut: list[int] = []
        for index, chat in enumerate(rendered):
            if isinstance(chat, Refused):
                bad.append((index, chat))
                continue
            tokens, mask = self._tokens(chat, next(encodings))
            keep = len(tokens) if self._spec.max_tokens is None else self._spec.max_tokens
            if not mask[:keep].any():
                bad.append((index, Refused("broken_chat", _untrained(len(tokens), keep))))
                continue
            if len(tokens) > keep:
                cut.append(len(tokens) - keep)
            parts.append((tokens[:keep], mask[:keep]))
        return EncodedChats(
            tokens=np.concatenate([tokens for tokens, _ in parts] or [np.empty(0, self._dtype)]),
            loss_mask=np.concatenate([mask for _, mask in parts] or [np.empty(0, np.bool_)]),
            lengths=np.array([len(tokens) for tokens, _ in parts], dtype=np.uint32),
            bad=tuple(bad),
            cut_chats=len(cut),
            cut_tokens=sum(cut),
        )

    def _tokens(self, chat: Rendered, encoding: Encoding) -> tuple[Tokens, NDArray[np.bool_]]:
        ids = encoding.ids
        spans = [self._ended(chat.text, span) for span in chat.spans]
        mask = _covered(encoding.offsets, spans)
        # Where the text is not closed by it already, the end of a document follows, as it does any document.
        if self._eos is not None and not chat.text.rstrip().endswith(self._eos.token):
            ids = [*ids, self._eos.id]
            mask = np.append(mask, bool(spans) and spans[-1][1] >= len(chat.text.rstrip()))
        tokens: Tokens = np.array(ids, dtype=self._dtype)
        return tokens, mask

    def _ended(self, text: str, span: Span) -> Span:
        """The span up to and with the special token that ends the turn, and not the blanks after it."""
        start, stop = span
        specials = tuple(self._special.values())
        bare = text[start:stop].rstrip()
        if bare.endswith(specials):
            return start, start + len(bare)
        follows = (special for special in specials if text.startswith(special, stop))
        return start, stop + len(next(follows, ""))


def _chat(
    messages: list[Message], first: int, tools: object, template: ChatTemplate | None, spec: ChatSpec
) -> Rendered | Refused:
    if template is None:
        raise ChatError("messages need a chat template, and the tokenizer has none")
    turns = [at for at, message in enumerate(messages) if message["role"] == "assistant" and at >= first]
    if not turns:
        return Refused("broken_chat", "no message of the role assistant: nothing would be trained")
    text, spans = template.spoken(messages, tools, turns[-1] if spec.trained == "last" else first)
    return Rendered(text, tuple(span for span in spans if span[0] < span[1]))


def _completion(
    record: dict[str, object], template: ChatTemplate | None, spec: ChatSpec
) -> Rendered | Refused:
    prompt, completion = record["prompt"], record["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion:
            return Refused("empty_text", "completion is empty")
        if not is_encodable(prompt + completion):
            return Refused("invalid_utf8", "holds half of a surrogate pair")
        return Rendered(prompt + completion, ((len(prompt), len(prompt) + len(completion)),))
    before = _messages(record, "prompt")
    return _chat(
        [*before, *_messages(record, "completion")], len(before), record.get("tools"), template, spec
    )


def _messages(record: dict[str, object], field: str) -> list[Message]:
    found = record[field]
    if not isinstance(found, list) or not found:
        raise ChatError(f"{field}: expected messages, found {json.dumps(found, default=str)[:40]}")
    for number, message in enumerate(found, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ChatError(f"{field}: message {number}: expected an object with role and content")
        if not any(message.get(key) is not None for key in ("content", "tool_calls")):
            raise ChatError(f"{field}: message {number}: no content")
    if not is_encodable(json.dumps(found, ensure_ascii=False, default=str)):
        raise ChatError(f"{field}: holds half of a surrogate pair")
    # Keys that are null are as good as absent: templates would say None.
    return [{key: value for key, value in cast("Message", m).items() if value is not None} for m in found]


def _covered(offsets: Sequence[Span], spans: Sequence[Span]) -> NDArray[np.bool_]:
    """Which tokens have a character in one of the spans."""
    starts = np.array([start for start, _ in offsets], dtype=np.int64)
    stops = np.array([stop for _, stop in offsets], dtype=np.int64)
    mask = np.zeros(len(offsets), dtype=np.bool_)
    for start, stop in spans:
        mask |= (starts < stop) & (stops > start)
    return mask


def _untrimmed(tokenizer: TextTokenizer) -> Tokenizer:
    """Without what comes after the model: it would add nothing here, but leave blanks out of the offsets of tokens."""
    parts: dict[str, object] = json.loads(tokenizer.data)
    found: Tokenizer = Tokenizer.from_str(json.dumps({**parts, "post_processor": None}))
    found.no_truncation()
    found.no_padding()
    return found


def _untrained(tokens: int, kept: int) -> str:
    if kept < tokens:
        return f"nothing that is trained stands in its first {kept} tokens of {tokens}"
    return "nothing in it is trained"
