"""One number a data set: found on a grid, and found again without the families of kernels that it is judged by."""

from __future__ import annotations

import numpy as np
import pytest

from evidence.concurrency.corun_cases import MAKESPAN, CorunCase, Figure, pair_figures, simulated, without_gap
from evidence.concurrency.corun_fit import GRAPH_BESIDE, CorunFit, Knob, tabulate
from evidence.concurrency.pairs import KernelPair, PairKernel
from iossim.backends.simulator.raw_kernels import RawKernel
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values

KNOB = Knob("graph_beside_us", (0.0, 1.0, 2.0), 0.0)


def case(*families: str, measured: float = 1.0) -> CorunCase:
    figures = [Figure(family, family, stream, measured, 1.0) for stream, family in enumerate(families)]
    figures.append(Figure(MAKESPAN, MAKESPAN, None, measured, 1.0))
    return CorunCase("set", "rtx-a5000", 2, "m", "t", (), Engine.GRAPH, tuple(figures))


def fit(*cases: CorunCase) -> CorunFit:
    """Of which the ratios are 1.0, 1.5 and 2.0 at the values of the knob."""
    figures = sum(len(one.figures) for one in cases)
    return CorunFit(cases, KNOB, np.array([1.0, 1.5, 2.0])[:, None] * np.ones(figures), own=2)


def test_the_value_is_that_of_the_least_errors() -> None:
    found = fit(case("add", "mul", measured=1.4), case("silu", "cat", measured=1.6))
    assert found.value == 1.0
    assert found.in_sample().tolist() == [2.0] * 6
    assert found.without_set().tolist() == [1.0] * 6


def test_what_is_left_out_is_judged_by_the_others() -> None:
    found = fit(case("add", "mul", measured=2.0), case("silu", "cat", measured=1.5), case("silu", "add", measured=1.5))
    # The first two share no family; with the third each shares one, and then only one other case is left, or none.
    assert found.without_families().tolist() == [1.5] * 3 + [2.0] * 3 + [1.0] * 3


def test_without_a_knob_nothing_is_left_out() -> None:
    found = CorunFit((case("add", "mul"),), None, np.array([[1.1, 1.2, 1.3]]), 0)
    assert found.value is None
    assert found.without_families().tolist() == found.without_set().tolist() == found.in_sample().tolist()


def test_baselines_of_a_pair() -> None:
    kernels = PairKernel("a", 1.0, 1.5), PairKernel("b", 4.0, 4.4)
    pair = KernelPair("rtx-a5000", "set", 2, "two graphs", kernels, 4.4)
    short, long, whole = pair_figures(pair, ["a", "b"], repeats=10)
    assert (short.measured, short.alone_us, short.none, short.total) == (1.5, 10.0, 1.0, 2.0)
    assert (long.measured, long.total) == (pytest.approx(1.1), 1.25)
    assert (whole.measured, whole.alone_us, whole.total) == (pytest.approx(1.1), 40.0, 1.25)


def test_a_kernel_keeps_a_part_of_a_time_that_its_gap_takes() -> None:
    assert without_gap(2.0, 0.5) == 1.5
    assert without_gap(1.0, 0.99) == pytest.approx(0.05)


def chains(profile: DeviceProfile) -> tuple[CorunCase, ...]:
    """Two chains of ten launches, whose nodes were measured to start 0.3 us later than alone."""
    own_us = 1.0
    kernels = tuple(RawKernel("launch", stream, 1, 128, alone_us=own_us) for _ in range(10) for stream in range(2))
    gap_us = profile.parameters.kernel_gap_us * profile.engine.graph_gap_factor
    alone_us = own_us + gap_us
    chain = PairKernel("launch", alone_us, alone_us + 0.3)
    pair = KernelPair(profile.name, "set", 2, "two graphs", (chain, chain), alone_us + 0.3)
    figures = pair_figures(pair, ["launch", "launch"], repeats=10)
    return (CorunCase("set", profile.name, 2, "m", "t", kernels, Engine.GRAPH, figures),)


def test_chains_beside_each_other_start_their_nodes_later() -> None:
    profile = device("rtx-a5000")
    (one,) = chains(profile)
    free = with_values(profile, {"graph_beside_us": 0.0})
    assert simulated(one, free) == pytest.approx((1.0, 1.0, 1.0))
    assert tabulate(chains, profile, GRAPH_BESIDE).value == 0.3
