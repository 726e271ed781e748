"""Value of the search's bounds, on the widest block of a network.

    python benchmarks/bounds.py [--network randwire] [--device v100-sxm2] [--engine paper]
    python benchmarks/bounds.py --columns [--network nasnet_a] [--device v100-sxm2] [--engine paper]
    python benchmarks/bounds.py --parts [--device v100-sxm2]

The first prints the ratio of stages' bounds (known prices among them) to their prices, the numbers of endings and
prices that they leave, also if each state's final cost had been known before; and the number of states that the
remaining work and critical path would rule out, beside the optimum. ``--columns`` prints how far the optimum of each different block is above the linear
program that covers its units with stages at their prices, and with stages at their bounds (column generation: all
stages are known here), and above work and critical paths. ``--parts`` prints where the gap of wide networks comes from
(the prices of the stages that are found, and their bounds), and how far the bound rises in parts in series.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import typer
from large_networks import network as large_network
from scipy.optimize import linprog

import iossim
from iossim.cost.model import START, CostModel, StageBounds, WrappedCostModel, problems_of
from iossim.ir.network import Network
from iossim.schedule.batch import StageBatch, Strategy
from iossim.schedule.masks import count_groups
from iossim.schedule.planned_stage import planned
from iossim.schedule.problem import ScheduleProblem, bits
from iossim.search.block_parts import prepare_block
from iossim.search.block_search import _Search
from iossim.search.lattice import build_lattice, no_merges
from iossim.search.options import SearchOptions, StageSpace
from iossim.search.scheduler import schedule
from iossim.search.windows import parts_bound_us

WIDE = ("nasnet_a_large", "pnasnet_5_large", "hrnet_w18", "clip")


class _Unbounded(WrappedCostModel):
    def bounds(self, problem: ScheduleProblem) -> None:
        return None


class _Asked(_Search):
    """A search that keeps all stages of several groups."""

    stages: tuple[np.ndarray, ...] = ()

    def _relax(self, filled: int, begin: int, end: int) -> None:
        self.stages += (np.unique(self.endings.stage[:filled]),)
        super()._relax(filled, begin, end)


class _Told(_Search):
    """A search that keeps the ratio of bound and price of endings; ``final`` are the costs of labels, if known."""

    final: np.ndarray | None = None
    ratios: tuple[np.ndarray, ...] = ()

    def _relax(self, filled: int, begin: int, end: int) -> None:
        stages, labels = self.endings.stage[:filled].copy(), self.endings.label[:filled].copy()
        leaving = self.labels.leaving[self.endings.source[:filled], labels & 1]
        bounds_us = self.endings.least_us[:filled] - leaving
        super()._relax(filled, begin, end)
        several = np.flatnonzero(labels & 1)[:: max(1, filled // 500)]
        if len(several):
            prices = self.cost_model.price_stages(StageBatch.concurrent(self.problem, stages[several]))
            self.ratios += (bounds_us[several] / prices,)

    def _settle(self, begin: int, end: int, still_here: object) -> None:
        if self.final is not None:
            self.labels.cost[begin:end] = np.minimum(self.labels.cost[begin:end], self.final[begin:end] + 1e-9)
        super()._settle(begin, end, still_here)  # type: ignore[arg-type]


def main(
    network: str = "randwire",
    device: str = "v100-sxm2",
    engine: str = "paper",
    parts: bool = False,
    columns: bool = False,
) -> None:
    # A wrapped model has no limits, so that all prices are exact.
    prices = WrappedCostModel(iossim.cost_model("simulator", device, engine=engine))
    if parts:
        for name in WIDE:
            wide = large_network(name)
            print(name, by_stages(wide, prices), flush=True)
            problem = max((ScheduleProblem.of_block(wide, block) for block in wide.blocks), key=len)
            print(name, in_parts(problem.in_order(), prices), flush=True)
        return
    loaded = iossim.load(network)
    blocks = [ScheduleProblem.of_block(loaded, block) for block in loaded.blocks]
    if columns:
        different = {block.key: block for block in blocks}.values()
        gaps = np.array([in_columns(block, prices) for block in different if len(block) > 1])
        for name, own in zip(("stages at prices", "stages at bounds", "work and critical paths"), gaps.T, strict=True):
            print(f"optimum above {name}: median {np.median(own):.1%}, {own.min():.1%} to {own.max():.1%}")
    else:
        sizes = [len(build_lattice(block, 400_000) or ()) for block in blocks]
        one_block(blocks[int(np.argmax(sizes))], prices)


def one_block(problem: ScheduleProblem, prices: CostModel) -> None:
    (part,), _ = prepare_block(problem, prices, SearchOptions(StageSpace(merge=False)))
    bounds = prices.bounds(part.problem)
    assert bounds is not None
    search = _Told(part, prices, START)
    search.run(lambda units: None)
    known = _Told(part, prices, START)
    known.final = search.labels.cost.copy()
    known.run(lambda units: None)
    cost_us = search.labels.cost.min(axis=1)
    print(f"{len(problem)} units, {len(part.lattice)} states, optimum {cost_us[-1]:.0f} us")
    ratio = np.quantile(np.concatenate(search.ratios), [0.1, 0.5, 0.9])
    print(
        "bound over price of stages of several groups: " + ", ".join(f"{one:.2f}" for one in ratio) + " (10, 50, 90%)"
    )
    for name, one in (("", search), (", each state's cost known before", known)):
        print(f"endings {one.looked_at:,}, priced stages {one.known.used:,}{name}")
    everything = (1 << len(problem)) - 1
    ahead_us = [least_us(part.problem, bounds, list(bits(everything & ~int(mask)))) for mask in part.lattice.masks]
    ruled_out = np.mean(cost_us + ahead_us > cost_us[-1] * (1 + 1e-9))
    print(f"states ruled out by work and critical paths of what is left: {ruled_out:.1%}")


def in_columns(problem: ScheduleProblem, prices: CostModel) -> tuple[float, float, float]:
    """Excess of a block's optimum over each of three bounds, as a share of the bound."""
    (part,), _ = prepare_block(problem, prices, SearchOptions(StageSpace(merge=False)))
    problem, bounds = part.problem, prices.bounds(part.problem)
    assert bounds is not None
    search = _Asked(part, _Unbounded(prices), START)
    search.run(lambda units: None)
    best_us = float(search.labels.cost[-1].min())
    units = np.arange(len(problem), dtype=np.uint64)
    stages = np.unique(np.concatenate([*search.stages, np.uint64(1) << units]))
    holds = (stages[:, None] >> units & np.uint64(1)).astype(float)
    several = count_groups(stages, problem.predecessors) > 1
    # Half of the boundary on each side of a stage of several groups is its own; the ends of the block have none.
    between_us = float(search.boundary[1, 1])
    prices_us = prices.price_stages(StageBatch.concurrent(problem, stages)) + several * between_us
    group_us = [
        max(bounds.serial_us[list(bits(group))].sum() for group in problem.groups(int(stage))) for stage in stages
    ]
    least = np.maximum((holds @ bounds.work_us).max(axis=1), group_us) + between_us
    alone_us = least_us(problem, bounds, range(len(problem)))
    programs_us = [
        max(covered_us(holds, costs) - between_us, alone_us)
        for costs in (prices_us, np.where(several, np.minimum(least, prices_us), prices_us))
    ]
    first, second, third = (best_us / us - 1 for us in (*programs_us, alone_us))
    return first, second, third


def covered_us(holds: np.ndarray, costs_us: np.ndarray) -> float:
    """Least cost of stages, fractional ones too, that cover each unit once.

    ``holds`` has shape ``[stages, units]``. Stages whose cost is less than the dual prices of their units enter, until
    none is left.
    """
    entered = np.argsort(costs_us / holds.sum(axis=1))[:2000]
    entered = np.union1d(entered, np.flatnonzero(holds.sum(axis=1) == 1))
    while True:
        solved = linprog(costs_us[entered], A_eq=holds[entered].T, b_eq=np.ones(holds.shape[1]), method="highs")
        reduced_us = costs_us - holds @ solved.eqlin.marginals
        cheap = np.flatnonzero(reduced_us < -1e-6)
        if not len(cheap):
            return float(solved.fun)
        entered = np.union1d(entered, cheap[np.argsort(reduced_us[cheap])[:3000]])


def least_us(problem: ScheduleProblem, bounds: StageBounds, units: Sequence[int]) -> float:
    """Lower bound of some units: the larger of their critical path and their work on any one resource."""
    if not units:
        return 0.0
    tails: dict[int, float] = {}
    for unit in reversed(units):
        after = [tails[other] for other in bits(int(problem.successors[unit])) if other in tails]
        tails[unit] = float(bounds.serial_us[unit]) + max(after, default=0.0)
    return max(float(bounds.work_us[list(units)].sum(axis=0).max()), *tails.values())


def in_parts(problem: ScheduleProblem, prices: CostModel) -> str:
    """Bound of the whole, and of parts in series."""
    bounds = prices.bounds(problem)
    assert bounds is not None
    whole_us, parts_us = least_us(problem, bounds, range(len(problem))), parts_bound_us(problem, no_merges(), prices)
    return f"whole {whole_us:.0f} us, in parts {parts_us:.0f} us ({parts_us / whole_us - 1:+.0%})"


def by_stages(network: Network, prices: CostModel) -> str:
    """Price of the stages that ios-both finds, their bounds, the boundaries, and the bound of all schedules."""
    found = schedule(network, prices, "ios-both")
    price_us = least = boundary_us = 0.0
    for problem, block in zip(problems_of(network, prices), found.blocks, strict=True):
        bounds = prices.bounds(problem)
        assert bounds is not None
        assert bounds.issue_us is not None
        for stage, own in zip(block.stages, planned(problem, block), strict=True):
            price_us, boundary_us = price_us + stage.latency_us, boundary_us + stage.boundary_us
            groups = [list(bits(group)) for group in problem.groups(own.mask)]
            issued_us = np.cumsum([0.0, *(bounds.issue_us[group].sum() for group in groups)])
            ends_us = [at + bounds.serial_us[group].sum() for at, group in zip(issued_us[:-1], groups, strict=True)]
            most_us = max(*bounds.work_us[bits(own.mask)].sum(axis=0), *ends_us)
            least += stage.latency_us if len(groups) == 1 or own.strategy is Strategy.MERGE else most_us
    return (
        f"stages {price_us:.0f} us, at their bounds {least:.0f}, boundaries {boundary_us:.0f}, "
        f"bound of all schedules {found.lower_bound_us or 0.0:.0f}"
    )


if __name__ == "__main__":
    typer.run(main)
