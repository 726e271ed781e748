"""The search at measured prices: lazy shortest path over the states of all blocks.

Take the best path under estimates, measure what of it is not measured yet, correct the estimates, plan anew, until
the best path is measured throughout (C. Dellin, S. Srinivasa, A unifying formalism for shortest path problems with
expensive edge evaluations, ICAPS 2016). Estimates are optimistic by about ``kappa`` standard deviations of the
remaining error. Kappa is raised step by step: at 0 the search settles on what looks best, at the last of
:data:`KAPPAS` nothing is left that is likely to be better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from iossim.base.compile_time import working_s
from iossim.base.compiled import Floats
from iossim.base.errors import OptionError, ScheduleError, ignore
from iossim.cost.capabilities import DeviceCostModel, MeasuringCostModel
from iossim.cost.model import CostModel, problems_of
from iossim.ir.network import Network
from iossim.schedule.planned_stage import PlannedStage
from iossim.schedule.problem import MAX_UNITS, ScheduleProblem
from iossim.schedule.schedule import Schedule
from iossim.search.anytime import finished
from iossim.search.assemble import build_schedule, price_blocks, total_latency_us
from iossim.search.block_parts import shown_in_notes
from iossim.search.ios import options_of
from iossim.search.measured import Budget
from iossim.search.measured.company import with_names_of
from iossim.search.measured.correction import Correction, optimistic_us
from iossim.search.measured.planner import Path
from iossim.search.measured.space import MeasuredCosts, MeasuredSpace, StageKey, build_space
from iossim.search.options import SearchOptions
from iossim.search.scheduler import MeasuredProgress

#: Optimism of estimates in standard deviations, step by step.
KAPPAS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
#: The standard deviation of the logarithm of an estimate's error if nothing is known about it.
DEVIATION = 0.15
#: Number of rounds after which measured stages alone are recombined into the best path.
RECOMBINE_EVERY = 20
#: Maximum number of stages of a path that are measured before the next plan, which their prices may change.
MEASURED_A_ROUND = 8
#: Each unit is measured alone if that takes no more than this fraction of the budget.
UNITS_FRACTION = 0.1
#: Paths that differ by less than this fraction count as equal: rounding, not scheduling.
RELATIVE_TOLERANCE = 1e-9
#: Number of stages measured at once when everything is measured.
MEASURED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class MeasuredSolution:
    """The best schedule whose stages are all measured: ``plans`` (the stages of each block) and its cost.

    ``measurements`` counts distinct signatures. ``complete``: the search came to its own end, with everything
    measured (``exhaustive``) or not; else the budget or an interrupt (``interrupted``) ended it. ``curve``: the number
    of measurements and the best price, us, at each improvement. ``kappa`` and ``deviation``: the optimism reached, and
    the standard deviation of the remaining error; ``planner_s``: seconds not spent measuring.
    """

    plans: tuple[tuple[PlannedStage, ...], ...]
    cost_us: float
    measurements: int
    complete: bool
    exhaustive: bool
    interrupted: bool
    curve: tuple[tuple[int, float], ...]
    kappa: float
    deviation: float
    planner_s: float
    notes: tuple[str, ...]


def measured_search(
    problems: Sequence[ScheduleProblem],
    estimate: CostModel,
    truth: MeasuringCostModel,
    options: SearchOptions,
    budget: Budget,
    *,
    deviation: float = DEVIATION,
    progress: MeasuredProgress = ignore,
) -> MeasuredSolution:
    """The best schedule found of blocks that run one after another, by measurements within ``budget``.

    ``deviation``: the standard deviation of the logarithm of the estimates' error, before anything is measured. A
    KeyboardInterrupt ends the search with the best so far; before there is one, the first path is measured to its
    end. If the budget allows it in the end, all other stages are measured too, and the result is the optimum at these
    prices. Raises OptionError if the budget is too small for one path, ScheduleError if nothing can be measured.
    """
    started = working_s()
    space = build_space(problems, estimate, truth, options, deviation)
    search = _Search(space, truth, budget, deviation, progress, started)
    search.run()
    return search.solution()


class _Search:
    def __init__(
        self,
        space: MeasuredSpace,
        truth: MeasuringCostModel,
        budget: Budget,
        deviation: float,
        progress: MeasuredProgress,
        started: float,
    ) -> None:
        self.space, self.budget, self.progress, self.started = space, budget, progress, started
        self.costs = MeasuredCosts(space, truth)
        self.estimate_us = space.classes.estimate_us
        self.usable = np.isfinite(self.estimate_us) & (self.estimate_us > 0)
        self.correction = Correction(space.classes.features, deviation)
        self.log_estimate = np.log(np.where(self.usable, self.estimate_us, 1.0))
        self.corrected = np.zeros(len(self.estimate_us))
        self.optimistic = self.estimate_us
        self.optimistic_at: tuple[float, int] | None = None
        self.fits = 0
        self.best = Path(np.inf, ())
        self.bound_us = 0.0
        self.curve: list[tuple[int, float]] = []
        self.kappa = 0.0
        self.measuring_s = 0.0
        self.begun = working_s()
        self.complete = self.interrupted = False

    def run(self) -> None:
        """Search until nothing better is likely, the budget is spent, or an interrupt."""
        try:
            self._measure_first_path()
            if not self.budget.everything:
                self._measure_units()
                self._improve()
            if self._may_measure_everything():
                self._measure_everything()
                self._improve(len(KAPPAS) - 1)
        except KeyboardInterrupt:
            self.interrupted, self.complete = True, False
            if not self.best.steps:
                self._measure_first_path()
        self._recombine()

    def _measure_first_path(self) -> None:
        """Measure the path that is best by the estimates alone, whatever the clock says, so that there is a result.

        If one of its stages cannot run after all, the next best path is measured.
        """
        while not self.best.steps:
            path = self.space.planner.best(self.costs.prices_us(self.estimate_us))
            if not path.steps:
                raise ScheduleError(
                    "no schedule was found whose stages can all be measured; choose another scheduler or backend"
                )
            todo = self.costs.unmeasured(path.steps)
            most = self.budget.measurements
            if most is not None and most < len(self.costs) + len(todo):
                raise OptionError(
                    f"`budget` {self.budget} is too small: a first schedule takes "
                    f"{len(self.costs) + len(todo)} measurements; give more"
                )
            self._measure(todo)
            self._note(path)

    def _may_measure_everything(self) -> bool:
        """True if the budget is for all stages, or suffices for those that the search left out."""
        if self.budget.everything:
            return True
        left = self._left()
        unknown = int(np.isnan(self.costs.class_us).sum())
        return self.complete and left is not None and self.budget.seconds is None and unknown <= left

    def _measure_units(self) -> None:
        """Measure each unit alone if that is cheap: its error affects all stages that contain it."""
        todo = self._one_of_each_class(alone=True)
        left = self._left()
        if left is None or len(todo) <= UNITS_FRACTION * left:
            self._measure(self.costs.without_repeats(todo))

    def _one_of_each_class(self, alone: bool = False) -> list[StageKey]:
        """A stage of each class without a measured stage; with ``alone`` only of stages of one unit."""
        found: list[StageKey] = []
        seen = ~np.isnan(self.costs.class_us)
        for problem, classes in enumerate(self.space.classes.of_stage):
            of_class, stages = np.unique(classes, return_index=True)
            new = ~seen[of_class]
            if alone:
                new &= np.bitwise_count(self.space.transitions[problem].masks[stages]) == 1
            found += [(problem, int(stage)) for stage in np.sort(stages[new])]
            seen[of_class[new]] = True
        return found

    def _measure_everything(self) -> None:
        """Measure one stage of each class."""
        todo = self._one_of_each_class()
        for begin in range(0, len(todo), MEASURED_AT_ONCE):
            self._measure(self.costs.without_repeats(todo[begin : begin + MEASURED_AT_ONCE]))
            self._report(len(self.costs) + max(0, len(todo) - begin - MEASURED_AT_ONCE))

    def _improve(self, level: int = 0) -> None:
        """Plan, measure and correct; raise kappa once a path is measured throughout."""
        rounds = 0
        while True:
            self.kappa = KAPPAS[level]
            path, prices_us = self._plan()
            todo = self.costs.unmeasured(path.steps)
            if not todo:
                if self._note(path) > path.cost_us * (1 + RELATIVE_TOLERANCE):
                    continue  # a stage costs more than the first of its class did
                if level + 1 == len(KAPPAS):
                    self.complete = True
                    return
                level += 1
                continue
            left = self._left()
            if left is not None and left < 1:
                return
            self._measure(_most_telling(todo, prices_us)[:left])
            if not self.costs.unmeasured(path.steps):
                self._note(path)
            rounds += 1
            if rounds % RECOMBINE_EVERY == 0:
                self._recombine()
            self._report(self.budget.measurements)

    def _plan(self) -> tuple[Path, list[Floats]]:
        """The best path at optimistic prices, and these prices, which change with kappa and the correction."""
        if self.optimistic_at != (self.kappa, self.fits):
            self.optimistic_at = self.kappa, self.fits
            typical_us = self.best.cost_us / len(self.best.steps)
            expected_us = np.exp(self.log_estimate + self.corrected)
            hoped_us = optimistic_us(expected_us, self.correction.deviation, self.kappa, typical_us)
            self.optimistic = np.where(self.usable, hoped_us, self.estimate_us)
        prices_us = self.costs.prices_us(self.optimistic)
        path = self.space.planner.best(prices_us)
        self.bound_us = path.cost_us
        return path, prices_us

    def _left(self) -> int | None:
        """Number of further measurements allowed; None for no limit."""
        if self.budget.measurements is not None:
            return self.budget.measurements - len(self.costs)
        if self.budget.seconds is None or not len(self.costs):
            return None
        left_s = self.budget.seconds - (working_s() - self.begun)
        each_s = max(self.measuring_s / len(self.costs), 1e-6)
        return max(0, int(left_s / each_s))

    def _measure(self, todo: Sequence[StageKey]) -> None:
        begun = working_s()
        classes = np.array(self.costs.measure(todo), dtype=np.int64)
        self.measuring_s += working_s() - begun
        prices = self.costs.class_us[classes]
        known = self.usable[classes] & np.isfinite(prices) & (prices > 0)
        classes, prices = classes[known], prices[known]
        if len(classes):
            self.correction.add(classes.tolist(), np.log(prices) - self.log_estimate[classes])
            if self.correction.is_due:
                self.correction.fit()
                self.corrected = self.correction.predict()
                self.fits += 1

    def _report(self, most: int | None) -> None:
        self.progress(len(self.costs), most, self.best.cost_us, min(self.bound_us, self.best.cost_us))

    def _note(self, path: Path) -> float:
        """Keep a measured path if it is the best; returns its cost."""
        cost_us = self.space.planner.cost_us(path.steps, [self.costs.price(step) for step in path.steps])
        if cost_us < self.best.cost_us:
            self.best = Path(cost_us, path.steps)
            self.curve.append((len(self.costs), cost_us))
        return cost_us

    def _recombine(self) -> None:
        """The best path of measured stages alone."""
        planner = self.space.planner.anew()
        barred: set[StageKey] = set()
        while True:
            prices_us = self.costs.prices_us(np.full(len(self.estimate_us), np.inf))
            for problem, stage in barred:
                prices_us[problem][stage] = np.inf
            path = planner.best(prices_us)
            if not path.steps:
                return
            unknown = self.costs.unmeasured(path.steps)
            if not unknown and self._note(path) <= path.cost_us * (1 + RELATIVE_TOLERANCE):
                return
            barred.update(unknown)

    def solution(self) -> MeasuredSolution:
        """The best measured schedule, and how the search ended."""
        spent_s = working_s() - self.started
        return MeasuredSolution(
            self.space.plans(self.best.steps),
            self.best.cost_us,
            len(self.costs),
            self.complete,
            self.complete and not np.isnan(self.costs.class_us).any(),
            self.interrupted,
            tuple(self.curve),
            self.kappa,
            self.correction.deviation,
            spent_s - self.measuring_s,
            self.space.notes,
        )


def _most_telling(todo: Sequence[StageKey], prices_us: Sequence[Floats]) -> list[StageKey]:
    """The stages to measure now: of each problem in turn the most expensive one left, whose error matters most."""
    rank: dict[int, int] = {}
    ranked: list[tuple[int, StageKey]] = []
    for problem, stage in sorted(todo, key=lambda key: -prices_us[key[0]][key[1]]):
        rank[problem] = rank.get(problem, 0) + 1
        ranked.append((rank[problem], (problem, stage)))
    return [key for _, key in sorted(ranked, key=lambda pair: pair[0])][:MEASURED_A_ROUND]


#: Nine of ten values of a normal distribution, which is the content of a band, lie within this many deviations.
_NINE_OF_TEN = 1.645


def schedule_measured(
    network: Network,
    estimate: CostModel,
    truth: MeasuringCostModel,
    name: str,
    options: SearchOptions,
    budget: Budget,
    progress: MeasuredProgress = ignore,
) -> Schedule:
    """The schedule that the scheduler of IOS called ``name`` finds at measured prices, within a budget.

    Its options tell how it was measured: ``budget``, ``measurements``, ``settled`` (the search came to its own end),
    ``kappa`` (the optimism reached), ``estimate`` (the identity of the estimating model) and ``estimated_us`` (the
    latency by that model). With ``company`` stages are also measured with the kernels that the estimates prefer for
    them. Raises OptionError for a wide block, and where kernels cannot be chosen.
    """
    started = working_s()
    deviation = expected_deviation(estimate)
    if options.company:
        estimate = with_names_of(truth, estimate)
    options = options_of(name, options)
    problems = problems_of(network, truth)
    for problem in problems:
        if problem.is_wide:
            raise OptionError(
                f"block {problem.name!r} has {len(problem)} units, and a search by measurements takes at most "
                f"{MAX_UNITS}; load the network with `max_block` {MAX_UNITS}"
            )
    found = measured_search(problems, estimate, truth, options, budget, deviation=deviation, progress=progress)

    def build(goes_on: bool) -> Schedule:
        estimated_us = total_latency_us(price_blocks(problems, found.plans, estimate))
        return build_schedule(
            network,
            problems,
            found.plans,
            truth,
            name,
            options=options.space.to_json()
            | {
                "concurrent": options.space.concurrent,
                "merge": options.space.merge,
                "budget": str(budget),
                "measurements": found.measurements,
                "everything_measured": found.exhaustive,
                "settled": found.complete,
                "kappa": found.kappa,
                "estimate": estimate.identity.to_json(),
                "estimated_us": estimated_us,
            }
            | ({"company": True} if options.company else {}),
            notes=[*network.notes, *shown_in_notes(network, found.notes)],
            complete=goes_on and not found.interrupted,
            proven=goes_on and found.exhaustive and not network.notes and not found.notes,
            search_s=working_s() - started,
        )

    return finished(build)


def expected_deviation(estimate: CostModel) -> float:
    """The standard deviation of the logarithm of an estimate's error, by the held-out bands of its profile."""
    if not isinstance(estimate, DeviceCostModel):
        return DEVIATION
    bands = [band for several in estimate.profile.provenance.bands.values() for band in several]
    rows = sum(band.rows for band in bands)
    if not rows:
        return DEVIATION
    return sqrt(sum(band.rows * (log(band.high / band.low) / (2 * _NINE_OF_TEN)) ** 2 for band in bands) / rows)
