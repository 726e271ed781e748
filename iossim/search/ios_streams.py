"""``ios-streams``: the stages of ios-both without their barriers, searched on (:mod:`iossim.search.streams`)."""

from __future__ import annotations

from dataclasses import replace

from iossim.base.compile_time import working_s
from iossim.base.errors import OptionError
from iossim.cost.capabilities import StreamCostModel
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.schedule import AnySchedule
from iossim.search.anytime import Clock, Steps
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
    from iossim.search.streams.from_stages import streams_from  # loaded by who asks for streams

    if not isinstance(cost_model, StreamCostModel):
        raise OptionError(
            f"scheduler {NAME!r} orders streams, and cost model {cost_model.identity.name!r} prices stages alone; give "
            "`cost_model` simulator, or another scheduler"
        )
    if options.workspace_limit_bytes is not None:
        raise OptionError(f"`workspace_limit` is for stages, and scheduler {NAME!r} has none; give another scheduler")
    started_s, steps = working_s(), Steps(Clock(options.seconds))
    half = replace(options, seconds=steps.clock.part_s(1 / 2))
    stages = schedule(network, cost_model, _STAGES, half, progress, memo)
    if not stages.complete:
        return stages.model_copy(update={"scheduler": NAME, "proven": False})
    try:
        return streams_from(network, cost_model, stages, options.seed, steps, started_s)
    except KeyboardInterrupt:  # between two steps
        return stages.model_copy(update={"scheduler": NAME, "complete": False, "proven": False})
