"""Sentencepiece models as tokenizer.json, those that convert to equal ids: BPE over text that is not rewritten.

    model file ─► fields (protobuf) ─► SentencePieceModel ─► converted: pieces ─► vocabulary, merges
                                                             settings ─► spaces, ▁

Such are those of Llama 1 and 2, Mistral and many after them. What the tokenizers library does in another way is
refused, not approximated: unigram takes a control piece for text where it is spelled out; rules that rewrite text
(nmt_nfkc) it applies to whole graphemes, and loses marks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from stages.errors import TokenizerError

SPACE = "▁"
"""What stands for a space in pieces."""
_UNIGRAM, _BPE = 1, 2

Value: TypeAlias = "int | bytes"


class Kind(IntEnum):
    """Of a piece, as sentencepiece numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    kind: Kind


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What of a model decides on ids."""

    pieces: Sequence[Piece]
    """The id of each is its place."""
    byte_fallback: bool
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool

    @classmethod
    def parse(cls, data: bytes, name: str) -> SentencePieceModel:
        """Raises TokenizerError where `data` is no model that converts to equal ids."""
        pieces: list[Piece] = []
        trainer: Mapping[int, Value] = {}
        normalizer: Mapping[int, Value] = {}
        try:
            for number, value in _fields(data):
                if number == 1:
                    pieces.append(_piece(_message(value)))
                elif number == 2:
                    trainer = _message(value)
                elif number == 3:
                    normalizer = _message(value)
        except (ValueError, IndexError, struct.error) as error:
            raise TokenizerError(f"{name}: is no sentencepiece model: {error}") from error
        if not pieces or not trainer:
            raise TokenizerError(f"{name}: is no sentencepiece model: it has no pieces, or no settings")
        if (kind := trainer.get(3, _UNIGRAM)) != _BPE:
            raise TokenizerError(
                f"{name}: a sentencepiece model of type {kind!r}; only BPE (2) converts to equal ids"
            )
        if normalizer.get(2):
            raise TokenizerError(
                f"{name}: rewrites text by rules ({_text(normalizer.get(1))}), which do not convert"
            )
        if trainer.get(24, 0) or not normalizer.get(5, 1):
            raise TokenizerError(f"{name}: marks spaces in another way than with {SPACE} before words")
        for at, piece in enumerate(pieces):
            if piece.kind in (Kind.USER_DEFINED, Kind.UNUSED):
                what = piece.kind.name.lower().replace("_", "-")
                raise TokenizerError(f"{name}: piece {at}, {piece.text!r}, is {what}: such do not convert")
        if sum(piece.kind is Kind.UNKNOWN for piece in pieces) != 1:
            raise TokenizerError(f"{name}: a sentencepiece model has one unknown piece; this one has not")
        if len({piece.text for piece in pieces}) < len(pieces):
            raise TokenizerError(f"{name}: has a piece twice")
        return cls(pieces, bool(trainer.get(35, 0)), bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1)))


def converted(model: SentencePieceModel) -> bytes:
    """A tokenizer.json that encodes as sentencepiece does."""
    unknown = next(at for at, piece in enumerate(model.pieces) if piece.kind is Kind.UNKNOWN)
    tokenizer = Tokenizer(
        models.BPE(
            {piece.text: at for at, piece in enumerate(model.pieces)},
            merges(model.pieces),
            unk_token=model.pieces[unknown].text,
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
        )
    )
    steps: list[normalizers.Normalizer] = []
    if model.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    undo: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(undo)
    tokenizer.add_special_tokens(
        [
            AddedToken(piece.text, special=True, normalized=False)
            for piece in model.pieces
            if piece.kind in (Kind.CONTROL, Kind.UNKNOWN)
        ]
    )
    return tokenizer.to_str().encode()


def merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Every way to put an ordinary piece together of two, the piece of the highest score first."""
    known = {piece.text for piece in pieces if piece.kind is Kind.NORMAL}
    found: list[tuple[float, int, str, str]] = []
    for at, piece in enumerate(pieces):
        if piece.kind is Kind.NORMAL:
            for cut in range(1, len(piece.text)):
                left, right = piece.text[:cut], piece.text[cut:]
                if left in known and right in known:
                    found.append((-piece.score, at, left, right))
    found.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in found]


def _piece(fields: Mapping[int, Value]) -> Piece:
    text, score = fields.get(1, b""), fields.get(2, bytes(4))
    if not isinstance(text, bytes) or not isinstance(score, bytes):
        raise ValueError("a piece is a text and a score")
    (number,) = struct.unpack("<f", score)
    kind = fields.get(3, 1)
    if not isinstance(kind, int):
        raise ValueError("the kind of a piece is a number")
    return Piece(text.decode(), number, Kind(kind))


def _text(value: Value | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else "of no name"


def _message(value: Value) -> dict[int, Value]:
    """The last value of each field, as protobuf has it for fields that are not repeated."""
    if not isinstance(value, bytes):
        raise ValueError("a message was expected, a number found")
    return dict(_fields(value))


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The number and value of each field of a protobuf message. ValueError, IndexError where it is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"byte {at} begins no field")
        if at + size > len(data):
            raise ValueError(f"ends within a field at byte {at}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError(f"byte {at} begins no number")
