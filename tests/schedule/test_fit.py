"""What a schedule may be for a network, error by error."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import make_schedule, make_stage, one_block, random_network, random_schedule

from iossim.base.errors import ScheduleError
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.schedule.fit import fit
from iossim.schedule.schedule import BlockSchedule, Schedule, Stage

SEEDS = st.integers(0, 2**20)


@pytest.fixture
def network() -> Network:
    """Block ``main``: a; b (1x1), c (3x3) and strided e of a; d = concat(b, c). Block ``tail``: f."""
    b = GraphBuilder("small")
    x = b.input("x", (1, 3, 4, 4))
    with b.block("main"):
        a = b.conv(x, 2, name="a")
        left, right = b.conv(a, 2, name="b"), b.conv(a, 3, kernel=3, padding=1, name="c")
        b.conv(a, 2, stride=2, name="e")
        b.add(Concat(), left, right, name="d")
    with b.block("tail"):
        b.conv("d", 2, name="f")
    return b.network(["f", "e"])


def schedule_of(network: Network, *stages: Stage) -> Schedule:
    tail = BlockSchedule(name="tail", stages=[make_stage([["f"]])])
    return make_schedule(network, [BlockSchedule(name="main", stages=list(stages)), tail])


@settings(max_examples=30, deadline=None)
@given(SEEDS, SEEDS)
def test_random_valid_schedules_fit(network: int, schedule: int) -> None:
    drawn = random_network(network)
    fit(random_schedule(drawn, schedule), drawn)


def test_a_valid_schedule_fits(network: Network) -> None:
    fit(schedule_of(network, make_stage([["a", "b", "c", "d", "e"]])), network)
    fit(
        schedule_of(network, make_stage([["a"]]), make_stage([["c", "b"]], "merge"), make_stage([["d"], ["e"]])),
        network,
    )


def merged_as(units: list[str], **variants: str) -> Stage:
    return make_stage([units], "merge").model_copy(update={"variants": variants})


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([make_stage([["a", "b", "c", "d"]])], "block 'main': unit 'e' is in no stage; add it or write"),
        ([make_stage([["a", "b"]])], "block 'main': unit 'c' (and 2 more) is in no stage"),
        ([make_stage([["a", "B"]])], "block 'main', stage 0: 'B' is no unit of the network; did you mean 'b'?"),
        (
            [make_stage([["a"]]), make_stage([["f"]])],
            "block 'main', stage 1: 'f' belongs to another block; known: a, b",
        ),
        ([make_stage([["a"]]), make_stage([["a"]])], "block 'main', stage 1: unit 'a' is scheduled twice; keep one"),
        ([make_stage([["a"], []])], "block 'main', stage 0: it has a group without units"),
        ([make_stage([])], "block 'main', stage 0: it has a group without units"),
        (
            [make_stage([["b"]]), make_stage([["a", "c", "d", "e"]])],
            "block 'main', stage 0: unit 'b' reads 'a', which runs in a later stage; move it after that stage",
        ),
        (
            [make_stage([["a", "c", "e"], ["b"]]), make_stage([["d"]])],
            "block 'main', stage 0: unit 'b' reads 'a', which runs in another group of the stage; put both in one group",
        ),
        (
            [make_stage([["a", "d", "b", "c", "e"]])],
            "block 'main', stage 0: unit 'd' reads 'b', which comes later in its group; swap the two",
        ),
        (
            [make_stage([["a"]]), make_stage([["b", "c"], ["e"]]), make_stage([["d"]])],
            "block 'main', stage 1: units 'b' and 'c' share a group and no edge joins them; give each",
        ),
        (
            [make_stage([["a"]]), make_stage([["b"], ["c"]], "merge"), make_stage([["d"], ["e"]])],
            "block 'main', stage 1: it is merged and has 2 groups; put the units of a merged stage in one group",
        ),
        (
            [make_stage([["a"]]), merged_as(["b", "c"], b="gemm"), make_stage([["d"], ["e"]])],
            "block 'main', stage 1: it is merged and names variants; leave them out",
        ),
        (
            [make_stage([["a"]]), make_stage([["b", "e"]], "merge"), make_stage([["c", "d"]])],
            "block 'main', stage 1: units b, e do not merge: they need one input, stride, dilation, size and activation; "
            "use the strategy 'concurrent'",
        ),
        (
            [make_stage([["b", "c"]], "merge"), make_stage([["a", "e"]]), make_stage([["d"]])],
            "block 'main', stage 0: unit 'b' reads 'a', which runs in a later stage",
        ),
    ],
)
def test_a_stage_that_is_not_valid(network: Network, stages: list[Stage], message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)) as raised:
        fit(schedule_of(network, *stages), network)
    assert "\n" not in str(raised.value)


def test_another_graph(network: Network) -> None:
    schedule = schedule_of(network, make_stage([["a", "b", "c", "d", "e"]]))
    with pytest.raises(ScheduleError, match="the schedule of 'small' is for a graph with hash 0123, 'small' has"):
        fit(schedule.model_copy(update={"graph_hash": "0123"}), network)


def test_other_blocks(network: Network) -> None:
    main = BlockSchedule(name="main", stages=[make_stage([["a", "b", "c", "d", "e"]])])
    tail = BlockSchedule(name="tail", stages=[make_stage([["f"]])])
    with pytest.raises(ScheduleError, match="it has 1 blocks, the network has 2; write the schedule again"):
        fit(make_schedule(network, [main]), network)
    with pytest.raises(ScheduleError, match="its block 0 is 'tail', the network's is 'main'"):
        fit(make_schedule(network, [tail, main]), network)


def test_a_schedule_of_one_block() -> None:
    b = GraphBuilder("one")
    with b.block("only"):
        y = b.conv(b.input("x", (1, 1, 2, 2)), 1, name="a")
    network = b.network([y])
    fit(one_block(network, make_stage([["a"]])), network)
