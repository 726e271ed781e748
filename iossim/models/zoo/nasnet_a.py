"""NasNet-A 6 @ 4032 (Zoph et al., 2018, arXiv:1707.07012, figure 4), as the IOS paper schedules it.

A cell reads the outputs ``previous`` and ``current`` of the two cells before it, and combines them in five sums that
are concatenated. Each of its 25 blocks is a cell, or an op of stem and tail; they are scheduled one by one although a
cell also reads the second to last cell.

The published network deviates from the paper's figures in these places, which are kept:

- a normal cell does not concatenate ``previous`` (the first cell of a stack does);
- stem 0 adds its first sum to the pooled first sum, stem 1 and the reduction cells the second one, as in the figure;
- stem 1 sums the two halves of its reduced ``previous`` instead of concatenating them;
- the second half of a reduced ``previous`` is not shifted by a pixel;
- a reduction cell has the sum that its fourth sum reads as a separate unit, and computes it again in its concat.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.models.catalogue import ZooModel
from iossim.models.layers import average_pool, conv, global_average_pool, join, max_pool, relu, relu_conv, relu_sepconv

_NORMAL_CELLS = 6
_PENULTIMATE_FILTERS = 4032
_STEM_FILTERS = 96


def build(b: GraphBuilder, x: str) -> str:
    # The last first-cell concatenates 6 values, and the width doubles twice: 4032 = 6 * 4 * 168.
    filters = _PENULTIMATE_FILTERS // 24
    with b.block("conv0"):
        stem = conv(b, "conv0", x, _STEM_FILTERS, 3, stride=2)
    with b.block("cell_stem_0"):
        previous = _stem_cell_0(b, "cell_stem_0", stem, filters // 4)
    with b.block("cell_stem_1"):
        current = _stem_cell_1(b, "cell_stem_1", stem, previous, filters // 2)
    cell = 0
    for stack in range(3):
        width = filters << stack
        if stack > 0:
            # The cells after a reduction read it and the cell before the one that it reduced.
            with b.block(f"reduction_cell_{stack - 1}"):
                current = _reduction_cell(b, f"reduction_cell_{stack - 1}", previous, current, width)
        for index in range(_NORMAL_CELLS):
            make = _first_cell if index == 0 else _normal_cell
            with b.block(f"cell_{cell}"):
                previous, current = current, make(b, f"cell_{cell}", previous, current, width)
            cell += 1
    with b.block("activation"):
        x = relu(b, "activation", current)
    with b.block("avgpool"):
        return global_average_pool(b, "avgpool", x)


def _stem_cell_0(b: GraphBuilder, name: str, x: str, width: int) -> str:
    """The first reduction cell; its only input is the first convolution."""
    squeezed = relu_conv(b, f"{name}.conv_1x1", x, width)
    first, _, second, third, fourth_pool, fifth = _reduction_sums(b, name, squeezed, x, width, middle=width)
    return join(b, f"{name}.concat", [second, third, (fourth_pool, first), fifth])


def _stem_cell_1(b: GraphBuilder, name: str, previous: str, current: str, width: int) -> str:
    """The second reduction cell, which reads the first convolution and stem 0."""
    right = relu_conv(b, f"{name}.conv_1x1", current, width)
    left = join(b, f"{name}.previous", [_strided_halves(b, name, previous, width // 2)])
    _, _, second, third, fourth_pool, fifth = _reduction_sums(b, name, right, left, width, middle=width // 2)
    return join(b, f"{name}.concat", [second, third, (fourth_pool, second), fifth])


def _reduction_cell(b: GraphBuilder, name: str, previous: str, current: str, width: int) -> str:
    left = relu_conv(b, f"{name}.conv_prev_1x1", previous, width)
    right = relu_conv(b, f"{name}.conv_1x1", current, width)
    _, second_terms, second, third, fourth_pool, fifth = _reduction_sums(b, name, right, left, width, middle=width)
    return join(b, f"{name}.concat", [second_terms, third, (second, fourth_pool), fifth])


def _first_cell(b: GraphBuilder, name: str, previous: str, current: str, width: int) -> str:
    """A normal cell after a reduction: its ``previous`` has twice the size, and is reduced first."""
    halves = _strided_halves(b, name, previous, width // 2)
    left = join(b, f"{name}.previous", halves)
    right = relu_conv(b, f"{name}.conv_1x1", current, width)
    return join(b, f"{name}.concat", [left, *_normal_sums(b, name, left, right, width, sep_3x3_input=right)])


def _normal_cell(b: GraphBuilder, name: str, previous: str, current: str, width: int) -> str:
    left = relu_conv(b, f"{name}.conv_prev_1x1", previous, width)
    right = relu_conv(b, f"{name}.conv_1x1", current, width)
    return join(b, f"{name}.concat", _normal_sums(b, name, left, right, width, sep_3x3_input=left))


def _normal_sums(
    b: GraphBuilder, name: str, left: str, right: str, width: int, sep_3x3_input: str
) -> list[tuple[str, str]]:
    """The five sums of a normal cell; the first one's 3x3 reads the other input in the first cell of a stack."""
    branch_0 = _twice_sepconv(b, f"{name}.comb_iter_0_left", right, width, 5)
    branch_1 = _twice_sepconv(b, f"{name}.comb_iter_0_right", sep_3x3_input, width, 3)
    branch_2 = _twice_sepconv(b, f"{name}.comb_iter_1_left", left, width, 5)
    branch_3 = _twice_sepconv(b, f"{name}.comb_iter_1_right", left, width, 3)
    pool_0 = average_pool(b, f"{name}.comb_iter_2_left", right, 3, stride=1, padding=1)
    pool_1 = average_pool(b, f"{name}.comb_iter_3_left", left, 3, stride=1, padding=1)
    pool_2 = average_pool(b, f"{name}.comb_iter_3_right", left, 3, stride=1, padding=1)
    branch_4 = _twice_sepconv(b, f"{name}.comb_iter_4_left", right, width, 3)
    return [(branch_0, branch_1), (branch_2, branch_3), (pool_0, left), (pool_1, pool_2), (branch_4, right)]


_Terms = tuple[str, str]


def _reduction_sums(
    b: GraphBuilder, name: str, right: str, left: str, width: int, middle: int
) -> tuple[str, _Terms, str, _Terms, str, _Terms]:
    """A reduction cell's first sum, terms of the second, that, terms of the third, pool of the fourth, the fifth."""
    branch_5x5 = _twice_sepconv(b, f"{name}.comb_iter_0_left", right, width, 5, stride=2)
    branch_7x7 = _twice_sepconv(b, f"{name}.comb_iter_0_right", left, width, 7, stride=2, middle=middle)
    first = join(b, f"{name}.comb_iter_0", [(branch_5x5, branch_7x7)])
    pool = max_pool(b, f"{name}.comb_iter_1_left", right, 3, stride=2, padding=1)
    second_terms = pool, _twice_sepconv(b, f"{name}.comb_iter_1_right", left, width, 7, stride=2, middle=middle)
    second = join(b, f"{name}.comb_iter_1", [second_terms])
    pool = average_pool(b, f"{name}.comb_iter_2_left", right, 3, stride=2, padding=1)
    branch_5x5 = _twice_sepconv(b, f"{name}.comb_iter_2_right", left, width, 5, stride=2, middle=middle)
    fourth_pool = average_pool(b, f"{name}.comb_iter_3_right", first, 3, stride=1, padding=1)
    branch_3x3 = _twice_sepconv(b, f"{name}.comb_iter_4_left", first, width, 3)
    last_pool = max_pool(b, f"{name}.comb_iter_4_right", right, 3, stride=2, padding=1)
    return first, second_terms, second, (pool, branch_5x5), fourth_pool, (branch_3x3, last_pool)


def _twice_sepconv(
    b: GraphBuilder, name: str, x: str, width: int, kernel: int, stride: int = 1, middle: int | None = None
) -> str:
    """Relu-SepConv applied twice, as always in NasNet; ``middle`` channels between the two."""
    y = relu_sepconv(b, f"{name}.sep1", [x], middle or width, kernel, stride)
    return relu_sepconv(b, f"{name}.sep2", [y], width, kernel)


def _strided_halves(b: GraphBuilder, name: str, previous: str, width: int) -> tuple[str, str]:
    """Factorised reduction: two strided 1x1 convolutions of ``width`` channels."""
    path_1 = relu_conv(b, f"{name}.path_1", previous, width, stride=2)
    return path_1, relu_conv(b, f"{name}.path_2", previous, width, stride=2)


MODELS = (ZooModel("nasnet_a", "NasNet-A 6 @ 4032, convolutional part", (3, 331, 331), build),)
