"""Tiktoken's rank files as tokenizer.json: the same ids for every text.

    base64(bytes) rank ─► vocabulary (bytes in the byte-level alphabet) ─┬─► tokenizer.json
                     └──► merges: each token's last two parts ───────────┘

A rank file holds no merges; but each of its tokens was made of two that have lower ranks, and merging its bytes by
rank, as an encoder would, ends at those two.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from stages.errors import TokenizerError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_O200K_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_O200K_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS: Mapping[str, str] = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": (
        _CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "o200k": "|".join(
        (
            rf"[^\r\n\p{{L}}\p{{N}}]?{_O200K_UPPER}*{_O200K_LOWER}+{_CONTRACTIONS}?",
            rf"[^\r\n\p{{L}}\p{{N}}]?{_O200K_UPPER}+{_O200K_LOWER}*{_CONTRACTIONS}?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
    "qwen": (
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""How text is cut before bytes are merged. A rank file does not say which one it goes with: its publisher does."""


@dataclass(frozen=True, slots=True)
class Special:
    """A special token and its id, which the rank file does not hold either."""

    token: str
    id: int

    @classmethod
    def parse(cls, text: str) -> Special:
        """Read `<|endoftext|>=50256`. Raises TokenizerError."""
        token, _, number = text.rpartition("=")
        if not token or not number.isdecimal():
            raise TokenizerError(f"{text!r}: expected TOKEN=ID, such as '<|endoftext|>=50256'")
        return cls(token, int(number))


def parse_ranks(data: bytes, name: str) -> dict[bytes, int]:
    """The lines of a rank file: a token's bytes in base64, a space, its rank. TokenizerError names the line."""
    ranks: dict[bytes, int] = {}
    taken: dict[int, int] = {}
    for row, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, number = line.split()
            rank, key = int(number), base64.b64decode(token, validate=True)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(
                f"{name}:{row}: expected a token in base64, a space and its rank, found {line[:40]!r}"
            ) from error
        if key in ranks or rank in taken or not key or rank < 0:
            what = (
                f"rank {rank} of line {taken[rank]}"
                if rank in taken
                else "a token that cannot be, or is there already"
            )
            raise TokenizerError(f"{name}:{row}: has {what}; is this a tiktoken file?")
        ranks[key], taken[rank] = rank, row
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise TokenizerError(f"{name}: has no token for byte {missing[0]}, so it could not encode every text")
    return ranks


def converted(ranks: Mapping[bytes, int], pattern: str, specials: tuple[Special, ...]) -> bytes:
    """A tokenizer.json that encodes as tiktoken does. Raises TokenizerError where a special token's id is taken."""
    letters = byte_letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        if len(token) > 1 and (parts := last_parts(token, ranks)) is not None:
            merges.append((spelled[parts[0]], spelled[parts[1]]))
    # What is a token as a whole is that token, however its parts would merge: so does tiktoken.
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, level])
    tokenizer.decoder = decoders.ByteLevel()
    return _with_specials(tokenizer, specials, set(ranks.values()))


def last_parts(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes] | None:
    """The two tokens that `token` is merged of, where merging its bytes leads to it; None where it never does."""
    parts = [token[at : at + 1] for at in range(len(token))]
    below = ranks[token]
    while len(parts) > 2:
        best, at = min(
            (ranks.get(left + right, below), at) for at, (left, right) in enumerate(pairwise(parts))
        )
        if best >= below:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return (parts[0], parts[1])


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies: itself where it can be seen, else one after
    those."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) if byte in seen else chr(256 + hidden.index(byte)) for byte in range(256)]


def _with_specials(tokenizer: Tokenizer, specials: tuple[Special, ...], taken: set[int]) -> bytes:
    """The library gives the next free id to a token that is added: so they are added in order, and checked."""
    for special in sorted(specials, key=lambda special: special.id):
        if special.id in taken:
            raise TokenizerError(f"{special.token}={special.id}: this id is an ordinary token's")
        while (free := tokenizer.get_vocab_size(with_added_tokens=True)) < special.id:
            # Ids between are nobody's, and must be somebody's here.
            tokenizer.add_special_tokens([AddedToken(f"<|unused_{free}|>", special=True, normalized=False)])
        tokenizer.add_special_tokens([AddedToken(special.token, special=True, normalized=False)])
        if (found := tokenizer.token_to_id(special.token)) != special.id:
            raise TokenizerError(
                f"{special.token}={special.id}: would get the id {found}; is it given twice?"
            )
    return tokenizer.to_str().encode()
