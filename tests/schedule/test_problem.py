"""Scheduling problems: masks, groups, keys, runs of a block; and what a schedule may be for a network, error by error."""

import re
from dataclasses import replace

import numpy as np
import pytest
from brute_force import connected_components, problems
from graph_builders import builder_with
from hypothesis import given
from hypothesis import strategies as st
from random_networks import make_schedule, make_stage, random_network, random_schedule

import iossim
from iossim.base.errors import GraphError, ScheduleError
from iossim.cost.measured.stage_plans import stage_digest
from iossim.ir.network import Network
from iossim.ir.ops.slice import Concat
from iossim.schedule.batch import Strategy
from iossim.schedule.fit import fit
from iossim.schedule.masks import count_groups, find_groups, stage_hashes, unit_keys
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import BlockSchedule, Schedule, Stage


@given(problems(10), st.integers(0, 1 << 10))
def test_groups_are_connected_components(problem: ScheduleProblem, chosen: int) -> None:
    mask = chosen & problem.full
    edges = [(u, v) for v in range(len(problem)) for u in bits(int(problem.predecessors[v]))]
    expected = [sum(1 << unit for unit in group) for group in connected_components(bits(mask), edges)]
    assert problem.groups(mask) == expected


@given(problems(10))
def test_successors_mirror_predecessors(problem: ScheduleProblem) -> None:
    for u in range(len(problem)):
        for v in range(len(problem)):
            assert (int(problem.successors[u]) >> v & 1) == (int(problem.predecessors[v]) >> u & 1)


@given(problems(10), st.data())
def test_a_run_keeps_the_edges_inside_it(problem: ScheduleProblem, data: st.DataObject) -> None:
    units = sorted(data.draw(st.sets(st.integers(0, len(problem) - 1), min_size=1)))
    run = problem.restrict(units)
    for i, u in enumerate(units):
        for j, v in enumerate(units):
            assert (int(run.predecessors[j]) >> i & 1) == (int(problem.predecessors[v]) >> u & 1)


def test_equal_blocks_have_equal_keys() -> None:
    network = iossim.load("nasnet_a")
    keys = {
        block.name: ScheduleProblem.of_block(network, block).key
        for block in network.blocks
        if block.name.startswith("cell_")
    }
    assert keys["cell_3"] == keys["cell_4"]
    assert keys["cell_2"] != keys["cell_7"], "the same structure at another size is other work"
    assert keys["cell_0"] != keys["cell_1"]


def test_batch_and_precision_change_signatures() -> None:
    plain = iossim.load("ios_sample")
    assert plain.signatures == iossim.load("ios_sample").signatures
    for other in (iossim.load("ios_sample", batch=2), iossim.load("ios_sample", dtype="tf32")):
        assert not set(plain.signatures) & set(other.signatures)
    # a and c are the same work, so are b and d; the concat is its own.
    assert len(set(plain.signatures)) == 3
    problem = ScheduleProblem.of_block(plain, plain.blocks[0])
    assert problem.priced_by([*map(str, problem.units)]).works == problem.works == problem.signatures


def test_a_problem_must_be_in_topological_order_and_have_units() -> None:
    with pytest.raises(GraphError, match="precedes what it reads"):
        ScheduleProblem("p", ("a", "b"), np.array([2, 0], dtype=np.uint64), np.zeros(2, dtype=np.int32), ("a", "b"))
    with pytest.raises(GraphError, match="block 'problem' has no units; a problem holds 1 or more"):
        ScheduleProblem.of_edges(0, [])


def test_one_sink() -> None:
    assert ScheduleProblem.of_edges(3, [(0, 2), (1, 2)]).one_sink
    assert not ScheduleProblem.of_edges(3, [(0, 1), (0, 2)]).one_sink


@given(problems(7), st.lists(st.sampled_from(["", "a", "b"]), min_size=7, max_size=7))
def test_number_and_text_tell_the_same_stages_apart(problem: ScheduleProblem, texts: list[str]) -> None:
    """The definition of a stage agrees; units that do nothing do not count, wherever they are."""
    works = replace(problem, signatures=tuple(texts[: len(problem)]))
    keys = np.where([bool(text) for text in works.signatures], unit_keys(works.signatures), np.uint64(0))
    stages = [PlannedStage(mask, strategy) for mask in range(1, problem.full + 1) for strategy in Strategy]
    hashes = stage_hashes(batch_of(works, stages), keys).tolist()
    seen = set()
    for stage, number in zip(stages, hashes, strict=True):
        groups = [[works.signatures[unit] for unit in bits(group)] for group in stage.groups(works)]
        digest = stage_digest(stage.strategy, groups)
        sequences = sorted(filter(None, (tuple(filter(None, group)) for group in groups)))
        if stage.strategy is Strategy.MERGE and not sequences:
            continue  # convolutions launch something
        seen.add((number, digest, (stage.strategy, tuple(sequences)) if sequences else None))
        assert (number == 0) == (digest is None) == (not sequences)
    assert len(seen) == len({number for number, _, _ in seen}) == len({digest for _, digest, _ in seen})
    assert len(seen) == len({signature for _, _, signature in seen})


def test_a_digest_is_what_stores_are_keyed_by() -> None:
    """Stores outlive releases: another text here needs another format, and says that nothing of old is found."""
    assert stage_digest(Strategy.CONCURRENT, [["b", "", "c"], ["a"], [""]]) == "25591ac5a37c5ae19938bd5b06679bf3"
    assert stage_digest(Strategy.CONCURRENT, [["a"], ["b", "c"]]) == "25591ac5a37c5ae19938bd5b06679bf3"
    assert stage_digest(Strategy.MERGE, [["b", "a"]]) == "ffa3e60c9abf1920d49435447bfd6ce7"
    assert stage_digest(Strategy.CONCURRENT, [[""]]) is None


@given(problems(9))
def test_compiled_groups_are_those_of_the_problem(problem: ScheduleProblem) -> None:
    masks = np.arange(1, problem.full + 1, dtype=np.uint64)
    groups = np.zeros(len(problem), dtype=np.uint64)
    for mask in masks:
        count = find_groups(mask, problem.predecessors, groups)
        assert groups[:count].tolist() == problem.groups(int(mask))
    assert count_groups(masks, problem.predecessors).tolist() == [len(problem.groups(mask)) for mask in masks.tolist()]


SEEDS = st.integers(0, 2**20)


@pytest.fixture
def network() -> Network:
    """Block ``main``: a; b (1x1), c (3x3) and strided e of a; d = concat(b, c). Block ``tail``: f."""
    b, x = builder_with("small", x=(1, 3, 4, 4))
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


@given(SEEDS, SEEDS)
def test_random_valid_schedules_fit(network: int, schedule: int) -> None:
    drawn = random_network(network)
    fit(random_schedule(drawn, schedule), drawn)


def stage_of(text: str) -> Stage:
    """A stage such as ``ab|c``, each letter a unit; ``a+b`` merges, and ``a+b:gemm`` names a variant of its first unit."""
    units, _, variant = text.partition(":")
    strategy = "merge" if "+" in units else "concurrent"
    groups = [list(group) for group in units.replace("+", "").split("|")] if units else []
    return make_stage(groups, strategy).model_copy(update={"variants": {units[0]: variant} if variant else {}})


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("abcd", ": unit 'e' is in no stage; add it or write"),
        ("ab", ": unit 'c' (and 2 more) is in no stage"),
        ("aB", ", stage 0: 'B' is no unit of the network; did you mean 'b'?"),
        ("a f", ", stage 1: 'f' belongs to another block; known: a, b"),
        ("a a", ", stage 1: unit 'a' is scheduled twice; keep one"),
        ("a|", ", stage 0: it has a group without units"),
        ("", ", stage 0: it has a group without units"),
        ("b acde", ", stage 0: unit 'b' reads 'a', which runs in a later stage; move it after that stage"),
        ("ace|b d", ", stage 0: unit 'b' reads 'a', which runs in another group of the stage; put both in one group"),
        ("adbce", ", stage 0: unit 'd' reads 'b', which comes later in its group; swap the two"),
        ("a bc|e d", ", stage 1: units 'b' and 'c' share a group and no edge joins them; give each"),
        ("a +b|c d|e", ", stage 1: it is merged and has 2 groups; put the units of a merged stage in one group"),
        ("a b+c:gemm d|e", ", stage 1: it is merged and names variants; leave them out"),
        (
            "a b+e cd",
            ", stage 1: units b, e do not merge: they need one input, stride, dilation, size and activation; "
            "use the strategy 'concurrent'",
        ),
        ("b+c ae d", ", stage 0: unit 'b' reads 'a', which runs in a later stage"),
    ],
)
def test_a_stage_that_is_not_valid(network: Network, stages: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(f"block 'main'{message}")):
        fit(schedule_of(network, *map(stage_of, stages.split(" "))), network)


def test_another_graph(network: Network) -> None:
    schedule = schedule_of(network, stage_of("abcde"))
    with pytest.raises(ScheduleError, match="the schedule of 'small' is for a graph with hash 0123, 'small' has"):
        fit(schedule.model_copy(update={"graph_hash": "0123"}), network)


def test_other_blocks(network: Network) -> None:
    main = BlockSchedule(name="main", stages=[stage_of("abcde")])
    tail = BlockSchedule(name="tail", stages=[make_stage([["f"]])])
    with pytest.raises(ScheduleError, match="it has 1 blocks, the network has 2; write the schedule again"):
        fit(make_schedule(network, [main]), network)
    with pytest.raises(ScheduleError, match="its block 0 is 'tail', the network's is 'main'"):
        fit(make_schedule(network, [tail, main]), network)
