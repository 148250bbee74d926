"""TFRecord: u64 length, its checksum, the record, its checksum; each record a `tf.train.Example`."""

from __future__ import annotations

import struct

from stages.inputs.crc32c import masked_crc32c
from stages.inputs.example import example_text
from stages.inputs.record import KEPT_BYTES, Judge, Refused
from stages.inputs.stream import Steps, Want

_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")


def tfrecord_steps(judge: Judge, field: str) -> Steps:
    """A record whose checksum is wrong is bad; where its length's is wrong, the next one is not to be found."""

    def parse(data: bytes) -> str | Refused:
        return example_text(data, field)

    row = 0
    while True:
        head = yield Want(_LENGTH.size, _LENGTH.size)
        if head.size == 0:
            return None
        short = Refused("truncated_tfrecord", "the file ends in the middle of a record")
        if head.size < _LENGTH.size:
            return short
        size, crc = _LENGTH.unpack(head.data)
        if masked_crc32c(head.data[:8]) != crc:
            return Refused("broken_tfrecord", "the checksum of a record's length does not fit it")
        whole = size <= judge.limit
        body = yield Want(size, size if whole else KEPT_BYTES)
        tail = yield Want(_CRC.size, _CRC.size)
        if tail.size < _CRC.size:
            return short
        row += 1
        if whole and masked_crc32c(body.data) != _CRC.unpack(tail.data)[0]:
            why = Refused("broken_tfrecord", "the record's checksum does not fit it")
            yield judge.refused(row, row, why, body.data, size)
        else:
            yield judge.document(row, row, body.data, size, parse)
