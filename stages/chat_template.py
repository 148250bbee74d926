"""Chat templates: messages to one text, and where in it the model speaks.

A template comes with a tokenizer, from anywhere: it runs in Jinja's immutable sandbox, on plain JSON, without files and
without a clock. Two ways tell the model's spans, the better one first: `{% generation %}` blocks in the template, or
rendering the chat up to each of its turns, where that gives beginnings of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TypeAlias

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from stages.errors import TokenizerError

Message: TypeAlias = Mapping[str, object]
Span: TypeAlias = tuple[int, int]

_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Around what a `generation` block gives. Unicode says that these are no characters; records with them are refused."""
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MODEL = "assistant"
_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatError(ValueError):
    """A chat that the template cannot say, or in which it does not tell where the model speaks."""


class ChatTemplate:
    """Renders chats. Safe in several threads."""

    def __init__(self, source: str, tokens: Mapping[str, str], name: str, today: date | None = None) -> None:
        """`tokens` are the special tokens by their names in templates, such as `eos_token`.

        `today` is what templates that write the date are told; without it they are told of none, and most fall back to
        a fixed one. Raises TokenizerError where `source` is no template.
        """
        self.source = source
        self.tokens = dict(tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _json
        environment.globals = {
            "range": environment.globals["range"],
            "dict": _dict,
            "namespace": _Named,
            "raise_exception": _raise,
        }
        if today is not None:
            environment.globals["strftime_now"] = today.strftime
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TokenizerError(
                f"{name}: the chat template, line {error.lineno}: {error.message}"
            ) from error

    @classmethod
    def beside(cls, tokenizer: Path, today: date | None = None) -> ChatTemplate:
        """The template that is saved beside a tokenizer.json. Raises TokenizerError where there is none.

        It is `chat_template.jinja`, or in `tokenizer_config.json`, where the special tokens are named too.
        """
        config_path = tokenizer.with_name("tokenizer_config.json")
        template_path = tokenizer.with_name("chat_template.jinja")
        try:
            config = json.loads(config_path.read_bytes()) if config_path.exists() else {}
            source = template_path.read_text("utf-8") if template_path.exists() else _default(config)
        except OSError as error:
            raise TokenizerError(f"{error.filename}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise TokenizerError(f"{config_path}: cannot be read: {error}") from error
        if source is None:
            raise TokenizerError(
                f"{tokenizer.parent}: no chat template: neither {template_path.name} nor a chat_template in "
                f"{config_path.name}; copy them from the model, or give records of prompt and completion"
            )
        tokens = {name: token for name in _TOKENS if (token := _token(config.get(name))) is not None}
        return cls(source, tokens, str(tokenizer.parent), today)

    def render(self, messages: Sequence[Message], tools: object = None, *, reply: bool = False) -> str:
        """One text; with `reply` the beginning of the model's next turn at its end. Raises ChatError."""
        return self._marked(messages, tools, reply).replace(_BEGIN, "").replace(_END, "")

    def spoken(
        self, messages: Sequence[Message], tools: object = None, first: int = 0
    ) -> tuple[str, list[Span]]:
        """One text, and where in it the model's turns stand, from the message `first` on: its own words and what ends
        them.

        Raises ChatError.
        """
        if _BEGIN in (whole := json.dumps(messages, ensure_ascii=False)) or _END in whole:
            raise ChatError(f"holds U+{ord(_BEGIN):X} or U+{ord(_END):X}, which are no characters")
        marked = self._marked(messages, tools, False)
        text, spans = _spans(marked)
        if not spans:
            return text, self._by_beginnings(messages, tools, text, first)
        if first:
            turns = [at for at, message in enumerate(messages) if message.get("role") == _MODEL]
            if len(turns) != len(spans):
                raise ChatError(f"{len(spans)} generation blocks for {len(turns)} turns of the model")
            spans = [span for at, span in zip(turns, spans, strict=True) if at >= first]
        return text, spans

    def _by_beginnings(self, messages: Sequence[Message], tools: object, text: str, first: int) -> list[Span]:
        spans: list[Span] = []
        for at, message in enumerate(messages):
            if message.get("role") != _MODEL or at < first:
                continue
            start = 0
            if at:
                self._beginning(messages[:at], tools, text)
                # A template may begin a reply in another way than it says one: what both share is no word of the model.
                start = _shared(self.render(messages[:at], tools, reply=True), text)
            last = at == len(messages) - 1
            spans.append((start, len(text) if last else self._beginning(messages[: at + 1], tools, text)))
        return spans

    def _beginning(self, messages: Sequence[Message], tools: object, text: str) -> int:
        part = self.render(messages, tools)
        if not text.startswith(part):
            raise ChatError(
                f"the template says the first {len(messages)} messages in another way when more follow, so it does not "
                "tell where the model speaks; mark its turns with {% generation %}, or train the last turn alone"
            )
        return len(part)

    def _marked(self, messages: Sequence[Message], tools: object, reply: bool) -> str:
        try:
            return self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=reply, **self.tokens
            )
        # A template is a program of whoever wrote the tokenizer: it fails on records in the ways that programs do.
        except _FAILURES as error:
            raise ChatError(f"the chat template refuses it: {error}") from error


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: what the model says."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        return f"{_BEGIN}{caller()}{_END}"


class _Named(Namespace):
    """Jinja's `namespace`, without names that reach into Python."""

    def __init__(self, *args: object, **values: object) -> None:
        super().__init__(*args, **values)
        for name in dict(*args, **values):
            self._check(name)

    def __setitem__(self, name: str, value: object) -> None:
        self._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: str) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace takes no name such as {name!r}")


def _spans(marked: str) -> tuple[str, list[Span]]:
    """The text without its marks, and what stood between them."""
    parts: list[str] = []
    spans: list[Span] = []
    size = 0
    for at, part in enumerate(marked.split(_BEGIN)):
        spoken, _, after = part.rpartition(_END) if at else ("", "", part)
        if spoken:
            spans.append((size, size + len(spoken)))
        parts += [spoken, after]
        size += len(spoken) + len(after)
    return "".join(parts), spans


def _shared(one: str, other: str) -> int:
    """Characters that both begin with."""
    shortest = min(len(one), len(other))
    return next((at for at in range(shortest) if one[at] != other[at]), shortest)


def _default(config: object) -> str | None:
    """Several templates may have names: `default` is the one for chats."""
    found = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _token(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, which writes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _dict(*args: object, **values: object) -> dict[str, object]:
    return dict(*args, **values)


def _raise(message: str) -> None:
    raise TemplateError(message)
