"""``ios-streams``: the stages of ios-both without their barriers, searched on (:mod:`iossim.search.streams`)."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from iossim.base.compile_time import working_s
from iossim.base.errors import OptionError
from iossim.cost.capabilities import StreamCostModel
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions
from iossim.search.scheduler import Progress, schedule, scheduler
from iossim.search.streams import NAME

_STAGES = "ios-both"


@scheduler(NAME, of_streams=True)
def ios_streams(
    network: Network, cost_model: CostModel, options: SearchOptions, progress: Progress, memo: SearchMemo | None
) -> AnySchedule:
    """Raises OptionError for a cost model that does not price streams, or a limit on workspace."""
    from iossim.search.streams.search import streams_from  # loaded by who asks for streams

    if not isinstance(cost_model, StreamCostModel):
        raise OptionError(
            f"scheduler {NAME!r} orders streams, and cost model {cost_model.identity.name!r} prices stages alone; give "
            "`cost_model` simulator, or another scheduler"
        )
    if options.workspace_limit_bytes is not None:
        raise OptionError(f"`workspace_limit` is for stages, and scheduler {NAME!r} has none; give another scheduler")
    started_s, began_s = working_s(), perf_counter()
    half_s = None if options.seconds is None else options.seconds / 2
    stages = schedule(network, cost_model, _STAGES, replace(options, seconds=half_s), progress, memo)
    left_s = None if half_s is None else max(half_s, 2 * half_s - (perf_counter() - began_s))
    return streams_from(network, cost_model, stages, replace(options, seconds=left_s), started_s)
