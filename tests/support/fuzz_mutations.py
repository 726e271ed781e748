"""Mutations of ONNX files: seeded functions that damage a model, by bytes or by the fields of its protobuf.

A :class:`Mutant` names a seed model and the mutations done to it, each with the seed of its random choices, so that equal
mutants are equal bytes in every process. What a mutation cannot be done to (a model without weights) it leaves as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz_fields import ON_FIELDS, Random
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto


@dataclass(frozen=True)
class Mutant:
    """The model called ``seed``, after each of the mutations (a name, and the seed of its choices) in turn."""

    seed: str
    steps: tuple[tuple[str, int], ...]

    def data(self, models: dict[str, bytes]) -> bytes:
        """The bytes of its file."""
        data = models[self.seed]
        for name, seed in self.steps:
            data = mutated(data, name, seed)
        return data

    def __str__(self) -> str:
        return " ".join([self.seed, *(f"{name}:{seed}" for name, seed in self.steps)])


def mutated(data: bytes, name: str, seed: int) -> bytes:
    """The file after one mutation; as it was if it no longer is a model whose fields could be changed."""
    choose = Random(seed)
    if name in ON_BYTES:
        return ON_BYTES[name](data, choose) if data else data
    model = ModelProto()
    try:
        model.ParseFromString(data)
        ON_FIELDS[name](model, choose)
        return bytes(model.SerializeToString())
    except (DecodeError, EncodeError, UnicodeDecodeError, UnicodeEncodeError, ValueError, TypeError):
        return data  # damaged before, or of a kind that the mutation does not know


def mutant_of(seed: int, seeds: Sequence[str]) -> Mutant:
    """A mutant drawn by one number."""
    choose = Random(seed)
    names = [*ON_FIELDS] * 3 + [*ON_BYTES]
    count = choose.choice((1, 1, 1, 2, 2, 3, 5))
    steps = tuple((choose.choice(names), choose.randrange(2**32)) for _ in range(count))
    return Mutant(choose.choice(seeds), steps)


# On bytes


def truncate(data: bytes, choose: Random) -> bytes:
    return data[: choose.randrange(len(data))]


def flip_bits(data: bytes, choose: Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 8))):
        damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
    return bytes(damaged)


def overwrite(data: bytes, choose: Random) -> bytes:
    damaged = bytearray(data)
    start = choose.randrange(len(damaged))
    length = min(choose.choice((1, 4, 64)), len(damaged) - start)
    damaged[start : start + length] = choose.randbytes(length)
    return bytes(damaged)


def insert(data: bytes, choose: Random) -> bytes:
    place = choose.randrange(len(data))
    return data[:place] + choose.randbytes(choose.choice((1, 3, 20))) + data[place:]


def splice(data: bytes, choose: Random) -> bytes:
    """A piece of the file again elsewhere, or left out."""
    start = choose.randrange(len(data))
    end = min(len(data), start + choose.choice((1, 16, 256)))
    if choose.random() < 0.5:
        return data[:start] + data[end:]
    place = choose.randrange(len(data))
    return data[:place] + data[start:end] + data[place:]


def huge_varint(data: bytes, choose: Random) -> bytes:
    """Lengths and numbers of protobuf as large as they can be written, or longer than may be."""
    place = choose.randrange(len(data))
    varint = b"\xff" * choose.choice((4, 9, 9, 12)) + bytes([choose.randrange(128)])
    return data[:place] + varint + data[place + choose.randrange(3) :]


ON_BYTES: dict[str, Callable[[bytes, Random], bytes]] = {
    function.__name__: function for function in (truncate, flip_bits, overwrite, insert, splice, huge_varint)
}
#: All mutations, the gentler ones first.
MUTATIONS = (*ON_BYTES, *ON_FIELDS)
