"""Pools by whose kernel runs them."""

from __future__ import annotations

import pytest

from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Kernel, Libraries, WorkClass
from iossim.hardware.lowering.target import step_candidates
from iossim.measurements.operator_kinds import read_record

OUTPUTS = 2 * 64 * 28 * 28


def kernel(kind: str, libraries: Libraries, **sizes: int) -> Kernel:
    window = {"kernel": 3, "stride": 2, "padding": 1} if not kind.startswith("global") else {}
    record = {"op": kind, "batch": 2, "channels": 64, "in_size": 56} | window | sizes
    found = step_candidates(read_record(record).step(), device("v100-sxm2"))
    (candidate,) = (one for one in found if one.is_in(libraries))
    (only,) = candidate.kernels
    return only


def test_a_framework_writes_where_each_maximum_was() -> None:
    written = {libraries: kernel("max_pool", libraries).bytes_written for libraries in Libraries}
    assert written[Libraries.CUDNN_7] == written[Libraries.CUDNN_8] == 4 * OUTPUTS
    assert written[Libraries.CURRENT] == (4 + 8) * OUTPUTS
    assert kernel("average_pool", Libraries.CURRENT).bytes_written == 4 * OUTPUTS


@pytest.mark.parametrize("libraries", Libraries)
def test_a_window_costs_its_taps_beside_finding_it(libraries: Libraries) -> None:
    def counted(kind: str, size: int) -> float:
        return kernel(kind, libraries, kernel=size, padding=0, stride=1, in_size=27 + size).flops / (2 * OUTPUTS)

    # A compiler's thread compares a tap with one instruction, since a load brings four channels.
    of_a_tap = 1 if libraries is Libraries.COMPILED else 2
    assert counted("max_pool", 5) - counted("max_pool", 3) == of_a_tap * (25 - 9)
    is_framework = libraries is Libraries.CURRENT
    assert (counted("average_pool", 3) > counted("max_pool", 3)) == is_framework


def test_only_averages_of_cudnn_reach_a_part_of_the_bandwidth() -> None:
    assert kernel("average_pool", Libraries.CUDNN_7).work_class is WorkClass.AVERAGE_WINDOW
    assert kernel("average_pool", Libraries.CURRENT).work_class is WorkClass.WINDOW
    assert kernel("max_pool", Libraries.CUDNN_7).work_class is WorkClass.WINDOW


def test_the_mean_of_an_image_is_a_window_of_cudnn_and_a_reduction_of_a_framework() -> None:
    window, reduction = (kernel("global_average_pool", one) for one in (Libraries.CUDNN_8, Libraries.CURRENT))
    assert (window.work_class, reduction.work_class) == (WorkClass.WINDOW, WorkClass.STREAM)
    assert window.flops > 2 * 2 * 64 * 56 * 56 > reduction.flops / 2
    assert reduction.blocks > window.blocks
