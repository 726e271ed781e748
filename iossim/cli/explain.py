"""``iossim explain``: the reason for each stage of a schedule, and the cost of the next best choice."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError
from iossim.cli.options import (
    ModelOptions,
    PricingOptions,
    SpaceOptions,
    StreamOptions,
    TransformOptions,
    command,
    with_flags,
)
from iossim.cli.outputs import SCHEDULE, Part, TimelineOutputs, Writer, present, text_file, wrapped
from iossim.cli.progress import interruptible, progress_bars
from iossim.cli.schedule_files import schedule_files, schedule_or_network

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule, StreamSchedule

#: Most launches shown, unless all are asked for.
_FEW = 20


@command
def explain(
    target: str,
    *,
    device: str | None = None,
    engine: str | None = None,
    model: str | None = None,
    reading: ModelOptions,
    scheduler: str = "ios-both",
    space: SpaceOptions,
    cost_model: str | None = None,
    store: Path | None = None,
    streams: StreamOptions,
    transforms: TransformOptions,
    stage: list[int] | None = None,
    all_stages: bool = False,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Explain a saved schedule, by default at the prices of its own device, or the one that optimize finds."""
    from iossim import api
    from iossim.cost.create import measures
    from iossim.ir.shown_names import shown_names
    from iossim.report.explanation import in_full, in_short, overview
    from iossim.report.figures.graph import graph_svg
    from iossim.report.search_words import INTERRUPTED
    from iossim.schedule.schedule import StreamSchedule
    from iossim.tasks.explain import explain as explain_schedule
    from iossim.tasks.explain_rewriting import explain_rewriting

    outputs = TimelineOutputs(out=out)
    outputs.check_files()
    saved, network = schedule_or_network(target, model, reading, reading.batch)
    prices: CostModel | None
    if saved is None:
        named, search = cost_model or "simulator", streams.of(space.search, [scheduler])
        if measures(named):
            raise OptionError(f"--cost-model {named} measures; run optimize, and explain its schedule.json")
        pricing = PricingOptions(**vars(space), engine=engine or "auto", cost_model=named, store=store)
        prices = pricing.prices(network, device)
        asked = {"cost_model": prices, "options": search, "choose_joins": reading.units is None, **vars(transforms)}
        with progress_bars(quiet=as_json) as progress, interruptible():
            done = api.scheduled(network, None, scheduler=scheduler, progress=progress, **asked)
        found, priced, network = done.schedule, done.schedule, done.network
    elif (space, streams, transforms, scheduler) != (SpaceOptions(), StreamOptions(), TransformOptions(), "ios-both"):
        raise OptionError(f"{target} is a saved schedule: nothing is searched; leave all options of a search out")
    else:
        found, (priced, prices) = saved, _priced(saved, network, cost_model, device, engine, store)
    complete = saved is not None or found.complete
    if isinstance(priced, StreamSchedule):
        assert prices is not None, "streams have a price"
        if stage:
            raise OptionError(f"{target} is of streams, and has no stages; leave --stage away, or give --all")
        _explain_streams(priced, network, prices, outputs, all_stages, as_json, complete)
        return
    with progress_bars(quiet=as_json, unit="blocks") as progress:
        explained = explain_schedule(priced, network, prices, stage or None, progress("explain"))
    steps = explain_rewriting(found, prices, model)

    def drawings() -> Mapping[str, Writer]:
        if prices is None:
            return {"graph.svg": text_file(graph_svg(network, priced))}
        whole = None if stage else explained
        return _drawings(schedule_files(outputs, network, priced, prices, said=(), explanation=whole))

    document = {**explained.to_json(), "rewriting": [step.to_json() for step in steps]}
    document |= {key: value for key, value in found.options.items() if key == "joint"}
    joint = (wrapped(remark) for remark in found.remarks if remark.startswith("Joint search:"))
    by_names = shown_names(network)(explained)
    shown = in_full(by_names) if stage else in_short(by_names, steps, all_stages)
    parts = [*overview(by_names), *joint, *shown, *([] if complete else [wrapped(INTERRUPTED)])]
    present(document, parts, as_json, out=out, files=drawings, complete=complete)


def _drawings(files: Mapping[str, Writer]) -> dict[str, Writer]:
    """All files but the schedule, so that one that the user keeps in the folder stays as it is."""
    return {name: writer for name, writer in files.items() if name != SCHEDULE}


def _priced(
    saved: AnySchedule,
    network: Network,
    cost_model: str | None,
    device: str | None,
    engine: str | None,
    store: Path | None,
) -> tuple[AnySchedule, CostModel | None]:
    """A saved schedule at the prices of the cost model that is named, else its own, else the simulator's for a device,
    and these prices; stages as they were saved, and None, where there are none.
    """
    from iossim import api
    from iossim.schedule.schedule import Schedule
    from iossim.tasks.own_prices import prices_of_schedule

    prices = prices_of_schedule(saved, device, engine, cost_model, store)
    if prices is None or (not isinstance(saved, Schedule) and prices.identity.to_json() == saved.cost_model):
        return saved, prices
    return api.simulate(saved, None, network=network, engine=engine, cost_model=prices), prices


def _explain_streams(
    found: StreamSchedule,
    network: Network,
    prices: CostModel,
    outputs: TimelineOutputs,
    all_launches: bool,
    as_json: bool,
    complete: bool,
) -> None:
    """Show the critical path, and its launches, or all, with their last waits and their slack."""
    from iossim.ir.shown_names import shown_names
    from iossim.report.schedule_tables import launches_table, path_lines
    from iossim.report.schedule_tables import said as lines_of
    from iossim.tasks.stream_explain import explain_streams

    ran = explain_streams(found, network, prices)
    by_names = shown_names(network)(ran)
    shown = list(by_names.launches) if all_launches else by_names.critical[:_FEW]
    said = list(map(with_flags, lines_of(found)))
    parts: list[Part] = [*map(wrapped, said), *path_lines(by_names), launches_table(shown)]
    if len(shown) < len(ran.launches):
        parts.append(f"{len(ran.launches) - len(shown)} more launches (--all shows them)")
    files = partial(schedule_files, outputs, network, found, prices, said=said, explanation=ran)
    present(ran.to_json(), parts, as_json, out=outputs.out, files=lambda: _drawings(files()), complete=complete)
