"""Texts to token ids, in Rust, in threads: `Encode` is the map, `TextTokenizer` what it encodes with.

`encode_batch_fast` spreads each batch over its own pool of threads, sized by RAYON_NUM_THREADS when it is
first used; two calls in flight keep that pool busy while one of them hands over its ids.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from stages.corpus.meta import Dtype, SpecialToken, TokenizerMeta
from stages.corpus.reader import Tokens
from stages.corpus.seen import text_hashes
from stages.errors import TokenizerError
from stages.inputs.record import Bad, FileDigest, Group

EOS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|end▁of▁sentence|>",
    "<EOT>",
    "<|eos|>",
    "[SEP]",
)
BOS = ("<|begin_of_text|>", "<s>", "<bos>", "<|begin▁of▁sentence|>", "<|startoftext|>", "<|bos|>", "[CLS]")
PAD = ("<pad>", "<|pad|>", "<|padding|>", "[PAD]")
"""Names under which tokenizers in the wild keep their special tokens, the commonest first."""

TRAINED_EOS = EOS[0]
LARGE_BYTES = 2 << 20


class TextTokenizer:
    """A tokenizer.json: its bytes, its identity, and ids that depend on the text alone."""

    def __init__(
        self,
        data: bytes,
        name: str,
        eos: str | None = None,
        *,
        bos: str | None = None,
        parse_special: bool = False,
    ) -> None:
        """`eos` is a token, "none", or None for the first of EOS that the tokenizer has. `bos`: a token that every
        document begins with; None: none. `parse_special`: text that spells a special token becomes that token;
        otherwise it is text like any other, so that no document can say that it ends.

        Raises TokenizerError: the bytes are no tokenizer, or it lacks the eos or the bos.
        """
        try:
            self.tokenizer = Tokenizer.from_str(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{name}: is no tokenizer.json: it is not text") from error
        except Exception as error:  # the library raises nothing narrower
            raise TokenizerError(
                f"{name}: is no tokenizer.json: {error}; give one as the tokenizers library saves it, "
                "or make one with --train-tokenizer bpe:32768"
            ) from error
        # Many files carry the limits of the model they came from: they would cut documents, or pad them.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = not parse_special
        self.data = data
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise TokenizerError(f"{name}: the tokenizer has no tokens; train it first")
        self._begin = () if bos is None else (_named(vocabulary, bos, name),)
        self.meta = TokenizerMeta(
            name="tokenizer.json",
            sha256=hashlib.sha256(data).hexdigest(),
            vocab_size=max(vocabulary.values()) + 1,
            eos=_eos(vocabulary, eos, name),
            bos=_first(vocabulary, BOS),
            pad=_first(vocabulary, PAD),
        )

    @classmethod
    def from_file(
        cls, path: Path, eos: str | None = None, *, bos: str | None = None, parse_special: bool = False
    ) -> TextTokenizer:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise TokenizerError(
                f"{path}: cannot be read: {error.strerror}; --tokenizer takes a file"
            ) from error
        return cls(data, str(path), eos, bos=bos, parse_special=parse_special)

    @property
    def dtype(self) -> Dtype:
        return "uint16" if self.meta.vocab_size <= 1 << 16 else "uint32"

    def encode(self, texts: Iterable[str]) -> tuple[Tokens, NDArray[np.uint32]]:
        """Ids of all texts end to end, a bos before and an eos after each where there is one, and their lengths,
        shape (texts,), bos and eos counted."""
        eos = () if self.meta.eos is None else (self.meta.eos.id,)
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        extra = len(self._begin) + len(eos)
        lengths = np.fromiter((len(e) + extra for e in encodings), dtype=np.uint32, count=len(encodings))
        tokens: Tokens = np.empty(int(lengths.sum(dtype=np.int64)), dtype=self.dtype)
        at = 0
        # Encodings are let go one by one: each takes many times the memory of its ids.
        encodings.reverse()
        while encodings:
            ids = encodings.pop().ids
            if self._begin:
                tokens[at] = self._begin[0]
                at += 1
            tokens[at : at + len(ids)] = ids
            at += len(ids)
            if eos:
                tokens[at] = eos[0]
                at += 1
        return tokens, lengths


@dataclass(frozen=True, slots=True)
class Encoded:
    """A Group after tokenising."""

    tokens: Tokens
    """Shape (sum of lengths,): the documents end to end."""
    lengths: NDArray[np.uint32]
    """Shape (documents,)."""
    bad: tuple[Bad, ...]
    finished: tuple[FileDigest, ...]
    read_bytes: int
    text_bytes: int
    hashes: NDArray[np.uint64] | None = None
    """Of the texts, shape (documents, 2), where they were asked for."""


class Encode:
    """Map: Group to Encoded. Stateless, safe in several threads."""

    def __init__(self, tokenizer: TextTokenizer, *, hashed: bool = False) -> None:
        """`hashed`: take the texts' hashes too."""
        self._tokenizer, self._hashed = tokenizer, hashed
        self._large = Lock()

    def __call__(self, group: Group) -> Encoded:
        # A large text takes 200 times its size while it is encoded: one at a time.
        with self._large if group.text_bytes > LARGE_BYTES else nullcontext():
            tokens, lengths = self._tokenizer.encode(group.texts)
        hashes = text_hashes(group.texts) if self._hashed else None
        return Encoded(tokens, lengths, group.bad, group.finished, group.read_bytes, group.text_bytes, hashes)


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """A byte-level BPE of `size` tokens, TRAINED_EOS among them."""

    size: int

    @classmethod
    def parse(cls, text: str) -> TrainSpec:
        """Read `bpe:8192`. Raises TokenizerError."""
        match = re.fullmatch(r"bpe:(\d{1,9})", text)
        if match is None or int(match[1]) <= len(pre_tokenizers.ByteLevel.alphabet()):
            raise TokenizerError(f"{text!r}: expected bpe:SIZE with a SIZE of 257 or more, such as bpe:8192")
        return cls(int(match[1]))

    def __str__(self) -> str:
        return f"bpe:{self.size}"


def train(spec: TrainSpec, texts: Iterable[str]) -> bytes:
    """Train on `texts` and return a tokenizer.json: the same bytes for the same texts, at any number of
    threads."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.size,
        special_tokens=[TRAINED_EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


def _first(vocabulary: dict[str, int], names: Iterable[str]) -> SpecialToken | None:
    return next((SpecialToken(name, vocabulary[name]) for name in names if name in vocabulary), None)


def _named(vocabulary: dict[str, int], token: str, name: str) -> int:
    if token not in vocabulary:
        raise TokenizerError(f"{name}: the tokenizer has no token {token!r} to begin documents with")
    return vocabulary[token]


def _eos(vocabulary: dict[str, int], wanted: str | None, name: str) -> SpecialToken | None:
    if wanted == "none":
        return None
    found = _first(vocabulary, EOS if wanted is None else (wanted,))
    if found is None:
        what = f"none of {', '.join(EOS)}" if wanted is None else f"no token {wanted!r}"
        raise TokenizerError(
            f"{name}: the tokenizer has {what} to end documents with; pass --eos TOKEN with one that it has, "
            "or --eos none to write documents without an end"
        )
    return found
