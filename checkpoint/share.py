"""A rank's share of a version as the other ranks get it.

    {"state": hex, "tensors": [[index, root], [index, root, fingerprints, digests], …], "packs": {name: digests},
     "new_bytes", "blocked_s"}

`state` names all tensors of the rank that speaks: it must be the listener's own. A tensor that is as the lineage
has it goes by its root alone. Bytes are base64, digests end to end.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import cache, partial

from blake3 import blake3

from checkpoint import strict
from checkpoint.capture import Captured
from checkpoint.incremental import FINGERPRINT_BYTES, Lineage, Record, Share, root_of
from checkpoint.layout import PACK_NAME
from checkpoint.peers import Codec
from checkpoint.strict import JSON, Malformed
from checkpoint.version import DIGEST_BYTES, MAX_TENSORS


def share_codec(captured: Captured, lineage: Lineage) -> Codec[Share]:
    """For the shares of one save: all ranks have captured the same state and stand on the same lineage."""
    state = cache(partial(_state, captured))
    return Codec(
        lambda share: _to_json(share, captured, lineage, state()),
        lambda value: _from_json(value, captured, lineage, state()),
    )


def _to_json(share: Share, captured: Captured, lineage: Lineage, state: str) -> JSON:
    by_pack: dict[str, list[bytes]] = {}
    for digest, pack in share.packs.items():
        by_pack.setdefault(pack, []).append(digest)
    return {
        "state": state,
        "tensors": [
            [index, _text(record.root)]
            if lineage.records.get(captured.names[index]) is record
            else [index, _text(record.root), _text(record.fingerprints), _text(record.digests)]
            for index, record in share.records.items()
        ],
        "packs": {pack: _text(b"".join(digests)) for pack, digests in by_pack.items()},
        "new_bytes": share.new_bytes,
        "blocked_s": share.blocked_s,
    }


def _from_json(value: JSON, captured: Captured, lineage: Lineage, state: str) -> Share:
    fields = strict.mapping(value, "a share")
    if fields.get("state") != state:
        raise Malformed("its state has other tensors than this rank's")
    records: dict[int, Record] = {}
    for entry in strict.sequence(fields.get("tensors"), "tensors", most=MAX_TENSORS):
        index, record = _record(strict.sequence(entry, "a tensor", most=4), captured, lineage)
        records[index] = record
    packs: dict[bytes, str] = {}
    for name, digests in strict.mapping(fields.get("packs"), "packs").items():
        if not PACK_NAME.fullmatch(name):
            raise Malformed(f"{name[:60]!r} is no pack's name")
        data = _bytes(digests, "digests")
        for at in range(0, len(data), DIGEST_BYTES):
            packs[data[at : at + DIGEST_BYTES]] = name
    return Share(
        records,
        packs,
        strict.integer(fields.get("new_bytes"), "new_bytes"),
        strict.number(fields.get("blocked_s"), "blocked_s"),
    )


def _record(entry: Sequence[JSON], captured: Captured, lineage: Lineage) -> tuple[int, Record]:
    if len(entry) not in {2, 4}:
        raise Malformed("a tensor that is none")
    index = strict.integer(entry[0], "a tensor's index", most=len(captured.names) - 1)
    name, root = captured.names[index], _bytes(entry[1], "a root")
    if len(entry) == 2:
        known = lineage.records.get(name)
        if known is None or known.root != root:
            raise Malformed(f"{name} is unchanged there, and is not known here as it is there")
        return index, known
    fingerprints, digests = _bytes(entry[2], "fingerprints"), _bytes(entry[3], "digests")
    if root_of(digests) != root or len(fingerprints) * DIGEST_BYTES != len(digests) * FINGERPRINT_BYTES:
        raise Malformed(f"{name} does not match its own root")
    return index, Record(captured.specs[index], fingerprints, digests, root)


def _state(captured: Captured) -> str:
    """A digest of which tensors there are: names, what they are, and in which order."""
    listed: Mapping[str, JSON] = {
        "names": list(captured.names),
        "specs": [[spec.dtype, list(spec.shape)] for spec in captured.specs],
    }
    return blake3(strict.encode(listed)).hexdigest()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(value: JSON, what: str) -> bytes:
    try:
        return base64.b64decode(strict.text(value, what), validate=True)
    except binascii.Error as error:
        raise Malformed(f"{what} are no base64: {error}") from error
