"""Views that a search leaves out: the same optimum, and the stages of all units again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_networks import random_network

from iossim import api
from iossim.ir.network import BATCH_VIEW, Network
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search import ios
from iossim.search.free_views import WithoutViews
from iossim.search.lattice import build_lattice
from iossim.transforms.microbatching.divided_blocks import divide_blocks
from iossim.transforms.microbatching.divisible import divisible


class AsTheyAre:
    """Every view stays."""

    @staticmethod
    def of(problem: ScheduleProblem) -> WithoutViews:
        units = tuple(range(len(problem)))
        return WithoutViews(problem, units, tuple(1 << unit for unit in units))


def some_divided(seed: int) -> Network:
    network = random_network(seed, blocks=3, units=3, movers=True)
    names = [block.name for block in network.blocks if divisible(network, block, 2)]
    assume(names and network.graph.types["x"].shape[0] == 2)
    return divide_blocks(network, dict.fromkeys(names[:-1] or names, 2))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from(["ios-parallel", "ios-both"]))
def test_the_optimum_stays(seed: int, scheduler: str) -> None:
    network = some_divided(seed)
    found = api.optimize(network, "v100-sxm2", scheduler=scheduler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ios, "WithoutViews", AsTheyAre)
        expected = api.optimize(network, "v100-sxm2", scheduler=scheduler)
    assert found.latency_us == pytest.approx(expected.latency_us, rel=1e-12)
    assert sorted(name for stage in found.stages for name in stage.units) == sorted(u.name for u in network.units)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20))
def test_what_is_left_is_the_same_problem(seed: int) -> None:
    network = some_divided(seed)
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        made = WithoutViews.of(problem)
        assert sorted(unit for own in made.members for unit in bits(own)) == list(range(len(problem)))
        assert all(own & 1 << unit for unit, own in zip(made.units, made.members, strict=True))
        dropped = set(range(len(problem))) - set(made.units)
        assert all(network.units[problem.units[unit]].kind == BATCH_VIEW for unit in dropped)
        whole, small = build_lattice(problem, 10**6), build_lattice(made.problem, 10**6)
        assert whole is not None
        assert small is not None
        # Each state without them is one with them.
        spread = [sum(made.members[unit] for unit in bits(int(mask))) for mask in small.masks]
        assert set(spread) <= set(whole.masks.tolist())
        for mask, wide in zip(small.masks.tolist(), spread, strict=True):
            assert len(made.problem.groups(mask)) == len(problem.groups(wide))
        assert not dropped or len(small) < len(whole)
        np.testing.assert_array_equal(made.problem.merge_class, problem.merge_class[list(made.units)])
