"""Small synthetic networks from a seed, for tests of anything that takes a network: branches, merges, sums, concats."""

from __future__ import annotations

import random

from iossim.base.errors import OptionError
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.layers import conv_relu, join, max_pool


def seeded_network(
    seed: int, units: int = 8, blocks: int = 2, batch: int = 1, precision: Precision = Precision.FP32
) -> Network:
    """A network of ``blocks`` sequential blocks, each of about ``units`` units between one input and one concat.

    Most convolutions share an input with others, so that there are groups to run concurrently and convolutions to
    merge. Equal arguments give equal networks everywhere. Raises OptionError for sizes below 1 (units: below 3).
    """
    for name, value, least in (("units", units, 3), ("blocks", blocks, 1), ("batch", batch, 1)):
        if value < least:
            raise OptionError(f"{name} {value} of a seeded network: give {least} or more")
    # Only random() is used: its stream for a given seed is the same in every version of Python.
    stream = random.Random(seed)
    b = GraphBuilder(f"seeded{seed}", precision, seed)
    x = b.input("image", (batch, 8, 14, 14))
    for block in range(blocks):
        with b.block(f"block{block}"):
            values, ends = [x], {x}
            for index in range(units - 1):
                name = f"block{block}.unit{index}"
                # Often the first value: branches of one value are the opportunity for scheduling.
                source = values[0] if stream.random() < 0.4 else values[int(stream.random() * len(values))]
                chosen = stream.random()
                if chosen < 0.75:
                    kernel = (1, 3, 3, 5)[int(stream.random() * 4)]
                    channels = (8, 8, 16, 24)[int(stream.random() * 4)]
                    y = conv_relu(b, name, source, channels, kernel, padding=kernel // 2)
                elif chosen < 0.9:
                    y = max_pool(b, name, source, 3, stride=1, padding=1)
                else:
                    same = [value for value in values if b.types[value].shape == b.types[source].shape]
                    other = same[int(stream.random() * len(same))]
                    ends.discard(other)
                    y = join(b, name, [[source, other]])
                ends.discard(source)
                ends.add(y)
                values.append(y)
            x = join(b, f"block{block}.concat", [value for value in values if value in ends])
    return b.network([x], ModelSource(f"seeded:{seed}", batch))
