"""Contents of an ONNX file, counted before it is parsed: the number of fields, and the memory of its packed numbers.

Protobuf creates an object for every message, even for one of two bytes in a file: a file of empty nodes takes a
hundred times its size in memory, and one of small packed integers seventeen times.

Source: Protocol Buffers, "Encoding" (protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

#: A smaller file is always within the limits.
_SMALL_FILE_BYTES = 4 << 20

#: The length-delimited fields by number: those of messages, and the bytes of a packed number.
_Fields = dict[int, Any]
_KNOWN: dict[str, _Fields] = {}


@dataclass(frozen=True)
class Contents:
    """The fields of a file, counted with repetitions, and the memory of its packed numbers."""

    pieces: int
    packed_bytes: int


def contents(data: mmap.mmap, most_pieces: int) -> Contents:
    """The contents of a model's file, counted up to ``most_pieces``; a small file is not scanned.

    Invalid protobuf ends the count: the parser will refuse it.
    """
    pieces = packed = place = 0
    size = len(data)
    # The stack of enclosing messages: the end of each, and its fields.
    inside = [(size if size >= _SMALL_FILE_BYTES else 0, _fields(onnx.ModelProto.DESCRIPTOR))]
    while inside and pieces <= most_pieces:
        end, fields = inside[-1]
        if place >= end:
            inside.pop()
            continue
        pieces += 1
        tag, place = _varint(data, place, end)
        kind = tag & 7
        if kind == 0:
            _, place = _varint(data, place, end)
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        elif kind == 2:
            length, place = _varint(data, place, end)
            if length > end - place:
                break
            field = fields.get(tag >> 3)
            if isinstance(field, dict):
                inside.append((place + length, field))
                continue
            if field is not None:
                # The last byte of each number is below 128. Lists double as they grow, and do not shrink.
                numbers = int(np.count_nonzero(np.frombuffer(data, np.uint8, length, place) < 128))
                packed += 2 * field * numbers
            place += length
        elif kind not in (3, 4):  # the end of a group has no content
            break
    return Contents(pieces, packed)


def _varint(data: mmap.mmap, place: int, end: int) -> tuple[int, int]:
    """The number at a position, and the position after it; an unterminated number is larger than any file."""
    value = shift = 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    return 1 << 70 | 7, end


def _fields(message: Any) -> _Fields:
    """The length-delimited fields of a message; a recursive message is its own field."""
    if message.full_name in _KNOWN:
        return _KNOWN[message.full_name]
    found = _KNOWN[message.full_name] = {}
    for field in message.fields:
        if field.message_type is not None:
            found[field.number] = _fields(field.message_type)
        elif field.type in (field.TYPE_INT64, field.TYPE_UINT64):
            found[field.number] = 8
        elif field.type in (field.TYPE_INT32, field.TYPE_ENUM):
            found[field.number] = 4
    return found
