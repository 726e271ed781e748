"""The stages that are simulated one by one are those that a search forms."""

from __future__ import annotations

import numpy as np
import pytest

from iossim.backends.simulator.events.stages import distinct_stages
from iossim.models.load import load
from iossim.schedule.problem import ScheduleProblem
from iossim.scheduling.counting import count_search_space
from iossim.scheduling.options import StageSpace


@pytest.mark.parametrize(
    "space", [StageSpace(), StageSpace("general", 3, 8), StageSpace("paper", 3, 8), StageSpace("general", 2, 2)]
)
@pytest.mark.parametrize("name", ["ios_sample", "squeezenet", "inception_v3"])
def test_distinct_stages_are_as_many_as_are_counted(name: str, space: StageSpace) -> None:
    network = load(name)
    for block in network.blocks:
        problem = ScheduleProblem.of_block(network, block)
        if len(problem) <= 9:
            masks = distinct_stages(problem, space)
            assert len(masks) == count_search_space(problem, space).distinct_stages
            assert len(np.unique(masks)) == len(masks)
