"""A network's schedule by the measured search."""

from __future__ import annotations

from math import log, sqrt

from iossim.base.compile_time import working_s
from iossim.base.errors import OptionError, ignore
from iossim.cost.capabilities import DeviceCostModel, MeasuringCostModel
from iossim.cost.model import CostModel, problems_of
from iossim.ir.network import Network
from iossim.schedule.problem import MAX_UNITS
from iossim.schedule.schedule import Schedule
from iossim.search.anytime import finished
from iossim.search.assemble import build_schedule, price_blocks, total_latency_us
from iossim.search.block_parts import shown_in_notes
from iossim.search.ios import options_of
from iossim.search.measured import Budget
from iossim.search.measured.company import with_names_of
from iossim.search.measured.search import DEVIATION, measured_search
from iossim.search.options import SearchOptions
from iossim.search.scheduler import MeasuredProgress

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
