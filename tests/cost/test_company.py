"""Kernels chosen for what runs beside them: against every choice, on made-up and simulated prices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, product

import numpy as np
import pytest
from graph_builders import builder_with
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iossim import api
from iossim.base.errors import OptionError
from iossim.cost.capabilities import StreamCostModel, VariantCostModel
from iossim.cost.facts import VariantBounds
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.execution.lower import lower_schedule
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.schedule.batch import FASTEST, StageBatch, Strategy, UnitVariant
from iossim.schedule.fit import with_variants
from iossim.schedule.planned_stage import PlannedStage, batch_of
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.schedule.schedule import StreamSchedule
from iossim.search import company
from iossim.search.assemble import reprice
from iossim.search.company import chosen_for_company
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import schedule, schedule_any
from iossim.tasks.task import under_other_engine


@dataclass(frozen=True)
class Shared:
    """A stage takes what its longest group takes alone, and what its units ask for of one resource, if that is more.

    By unit ``offers[unit]`` are pairs of a time alone and a demand, the fastest first.
    """

    offers: tuple[tuple[tuple[float, float], ...], ...]
    #: How near bounds are to prices.
    tight: float = 1.0

    @property
    def identity(self) -> CostModelIdentity:
        return CostModelIdentity("shared", "none", "fp32", "graph", "1")

    def variants(self, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
        return tuple(
            tuple(UnitVariant(f"v{at}" if at else FASTEST, us, 0) for at, (us, _) in enumerate(self.offers[unit]))
            for unit in map(int, problem.unit_names)
        )

    def price_stages(self, batch: StageBatch) -> Prices:
        prices = np.empty(len(batch))
        for names, stages in batch.by_variants():
            numbers = [int(name[1:] or 0) for name in names]
            offers = [self.offers[int(unit)][at] for unit, at in zip(batch.problem.unit_names, numbers, strict=True)]
            for index in stages.tolist():
                groups = [bits(group) for group in batch.problem.groups(int(batch.masks[index]))]
                longest = max(sum(offers[unit][0] for unit in group) for group in groups)
                demand = sum(offers[unit][1] for group in groups for unit in group)
                prices[index] = max(longest, demand if len(groups) > 1 else 0.0)
        return prices

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return 0.0

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        return None

    def bounds_of_variants(self, problem: ScheduleProblem) -> tuple[VariantBounds, ...]:
        found = []
        for unit in map(int, problem.unit_names):
            alone_us, demand_us = np.array(self.offers[unit]).T * self.tight
            own = StageBounds(alone_us, alone_us, demand_us[:, None])
            found.append(VariantBounds(own, np.arange(len(alone_us), dtype=np.uint64)))
        return tuple(found)

    def merged_workspace_bytes(self, problem: ScheduleProblem, mask: int) -> int:
        return 0


def chains(lengths: Sequence[int]) -> ScheduleProblem:
    """Groups of so many units, each a chain; units are called by their numbers."""
    edges, first = [], 0
    for length in lengths:
        edges += [(unit, unit + 1) for unit in range(first, first + length - 1)]
        first += length
    problem = ScheduleProblem.of_edges(first, edges)
    return replace(problem, unit_names=tuple(map(str, range(first))))


times = st.floats(1, 100)
an_offer = st.lists(st.tuples(times, times), min_size=1, max_size=4).map(lambda own: tuple(sorted(own)))


#: Where no change of one unit, of equal ones or of all leads to the best of all choices.
STUCK = [
    [((2.0, 7.0), (5.0, 4.0), (6.0, 1.0)), ((1.0, 2.0), (6.0, 11.0), (8.0, 7.0))],
    [((5.0, 12.0), (11.0, 4.0), (12.0, 3.0)), ((1.0, 1.0), (1.0, 12.0), (6.0, 4.0))],
]


@given(st.lists(st.lists(an_offer, min_size=1, max_size=2), min_size=2, max_size=6), st.floats(0, 1))
@example(STUCK, 1.0)
@settings(max_examples=150)
def test_a_stage_has_the_best_of_all_choices_or_of_many_groups_no_worse(
    groups: list[list[tuple[tuple[float, float], ...]]], tight: float
) -> None:
    problem, few = chains([len(group) for group in groups]), len(groups) < 4
    prices = Shared(tuple(unit for group in groups for unit in group), tight if few else 1.0)
    stage = PlannedStage(problem.full, Strategy.CONCURRENT)
    chosen = chosen_for_company(prices)
    (price_us,) = chosen.price_stages(batch_of(problem, [stage])).tolist()
    assert prices.price_stages(batch_of(problem, [chosen.chosen(problem, stage)])).tolist() == [price_us]
    if few:
        assert price_us == prices.price_stages(batch_of(problem, every_choice(prices, problem))).min()
    else:
        assert price_us <= prices.price_stages(batch_of(problem, [stage])).item()


def every_choice(prices: VariantCostModel, problem: ScheduleProblem) -> list[PlannedStage]:
    """The stage of all units, with all choices of their variants."""
    names = [[one.name for one in own] for own in prices.variants(problem)]
    chosen = (tuple((unit, name) for unit, name in enumerate(choice) if name) for choice in product(*names))
    return [PlannedStage(problem.full, Strategy.CONCURRENT, variants) for variants in chosen]


def test_equal_units_change_together_where_one_alone_saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three changed take as long as none, since the longest of all decides."""
    monkeypatch.setattr(company, "MOST_CHOICES", 0)
    problem = replace(chains([1, 1, 1]), signatures=("equal",) * 3)

    @dataclass(frozen=True)
    class Together(Shared):
        def price_stages(self, batch: StageBatch) -> Prices:
            prices = super().price_stages(batch)
            for names, stages in batch.by_variants():
                prices[stages] = 40.0 if all(names) else np.maximum(prices[stages], 60.0)
            return prices

    prices = Together((((10.0, 1.0), (12.0, 1.0)),) * 3)
    stage = PlannedStage(problem.full, Strategy.CONCURRENT)
    assert chosen_for_company(prices).price_stages(batch_of(problem, [stage])).tolist() == [40.0]


def branches() -> Network:
    """Convolutions of one input, one of them followed by another."""
    b, x = builder_with("branches", x=(1, 64, 28, 28))
    with b.block("branches"):
        first, *others = (b.conv(x, width, kernel=3, padding=1, name=f"c{width}") for width in (64, 96, 128))
        last = b.conv(first, 48, kernel=3, padding=1, name="d")
    return b.network([last, *others])


@pytest.mark.parametrize("engine", ["paper", "graph"])
def test_a_simulated_stage_has_the_best_of_all_choices(engine: str) -> None:
    network = branches()
    prices = api.cost_model(device="t4", engine=engine)
    assert isinstance(prices, VariantCostModel)
    problem = ScheduleProblem.of_block(network, network.blocks[0]).restrict([1, 2])
    found = chosen_for_company(prices).price_stages(
        batch_of(problem, [PlannedStage(problem.full, Strategy.CONCURRENT)])
    )
    assert found.tolist() == [prices.price_stages(batch_of(problem, every_choice(prices, problem))).min()]


@pytest.mark.parametrize(("board", "engine"), [("t4", "graph"), ("v100-sxm2", "paper"), ("h100-sxm", "graph")])
def test_a_schedule_costs_no_more_and_says_its_kernels(board: str, engine: str) -> None:
    network, prices = load("squeezenet"), api.cost_model(device=board, engine=engine)
    options = SearchOptions(StageSpace("general", 3, 8))
    alone, chosen = (schedule(network, prices, "ios-both", replace(options, company=on)) for on in (False, True))
    assert chosen.latency_us <= alone.latency_us
    assert chosen.lower_bound_us is not None
    assert chosen.lower_bound_us <= chosen.latency_us
    assert not chosen.proven
    assert chosen.options["company"] is True
    assert "company" not in alone.options
    assert reprice(chosen, network, prices).latency_us == chosen.latency_us
    named = [stage for block in chosen.blocks for stage in block.stages if stage.variants]
    assert all(len(stage.groups) > 1 for stage in named)
    assert bool(named) is (chosen.latency_us < alone.latency_us)
    assert isinstance(prices, StreamCostModel)
    seen_us = [
        prices.simulated_plan_us(network, lower_schedule(one, network, prices.identity.engine))
        for one in (alone, chosen)
    ]
    assert seen_us[1] <= seen_us[0]
    if board == "t4":
        assert chosen.latency_us < 0.98 * alone.latency_us


@pytest.mark.parametrize(
    ("model", "engine", "most_stages"), [("squeezenet", "graph", 0), ("ios_sample", "partition", 300)]
)
def test_where_stages_are_too_many_or_have_sms_of_their_own_the_schedule_is_no_worse(
    model: str, engine: str, most_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(company, "MOST_STAGES", most_stages)
    network, prices = load(model), api.cost_model(device="t4", engine=engine)
    alone, chosen = (schedule(network, prices, "ios-both", SearchOptions(company=on)) for on in (False, True))
    assert chosen.latency_us <= alone.latency_us
    assert most_stages or chosen.latency_us < alone.latency_us


def test_what_is_slower_event_by_event_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each schedule that is run takes longer than the one before: the first is that of the fastest kernels."""
    runs = count(1.0)
    monkeypatch.setattr("iossim.search.company._EventByEvent.schedule_us", lambda prices, schedule: next(runs))
    network, prices = load("ios_sample"), api.cost_model(device="t4", engine="graph")
    alone, chosen = (schedule(network, prices, "ios-both", SearchOptions(company=on)) for on in (False, True))
    assert next(runs) > 2.0
    assert chosen.blocks == alone.blocks


def test_it_is_a_cost_model_of_its_own_and_says_what_it_does_not_go_with() -> None:
    inner = api.cost_model(device="t4")
    assert chosen_for_company(inner).identity.version == inner.identity.version + "+company"
    with pytest.raises(OptionError, match="leave one of them out"):
        api.search_options(workspace_limit="1MiB", company=True)
    with pytest.raises(OptionError, match="does not know what else a unit may run as"):
        chosen_for_company(api.cost_model("random:1"))


def test_streams_begin_from_stages_with_chosen_kernels() -> None:
    network, prices = load("squeezenet"), api.cost_model(device="t4", engine="graph")
    found = schedule_any(network, prices, "ios-streams", SearchOptions(company=True))
    plain = schedule_any(network, prices, "ios-streams")
    assert isinstance(found, StreamSchedule)
    assert any(launch.variant for launch in found.launches)
    assert found.latency_us < plain.latency_us


def test_kernels_that_the_other_engine_lacks_do_not_keep_its_latency_away() -> None:
    """The paper's engine has cuDNN's grouped convolution, a graph of generated kernels has not."""
    network = load("randwire")
    prices = api.cost_model(device="t4", engine="paper")
    assert isinstance(prices, VariantCostModel)
    plain = schedule(network, prices, "sequential")
    problems = [ScheduleProblem.of_block(network, block) for block in network.blocks]
    lacking = {
        unit: one.name
        for problem in problems
        for unit, own in zip(problem.unit_names, prices.variants(problem), strict=True)
        for one in own
        if "grouped_convolve" in one.name
    }
    assert lacking
    there = under_other_engine(network, with_variants(plain, lacking), prices)
    assert there == under_other_engine(network, plain, prices)
