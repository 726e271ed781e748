"""``iossim simulate``: a saved schedule priced on another device, or run there block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError
from iossim.cli.options import command
from iossim.cli.outputs import Part, TimelineOutputs, Writer, pictures, present, wrapped
from iossim.cli.schedule_files import schedule_files

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.execution.execution import Execution
    from iossim.ir.network import Network
    from iossim.schedule.schedule import AnySchedule
    from iossim.tasks.stream_explain import StreamExplanation


@command
def simulate(
    schedule: Path,
    device: str | None = None,
    batch: int | None = None,
    engine: str | None = None,
    model: str | None = None,
    cost_model: str | None = None,
    store: Path | None = None,
    event_driven: bool = False,
    *,
    outputs: TimelineOutputs,
    as_json: bool = False,
) -> None:
    """Price a saved schedule of stages or streams, by default as it was priced, and for its own batch size."""
    from iossim import api
    from iossim.api import simulate_events
    from iossim.ir.shown_names import shown_names
    from iossim.schedule.schedule import StreamSchedule
    from iossim.tasks.own_prices import prices_of_schedule
    from iossim.tasks.stream_explain import explain_streams

    if event_driven and cost_model not in (None, "simulator"):
        raise OptionError(f"--event-driven runs on the simulator, not on {cost_model!r}; leave --cost-model out")
    saved, network = api.read_any_schedule(schedule, model, batch)
    prices = prices_of_schedule(saved, device, engine, cost_model, store)
    priced = api.simulate(saved, device, network=network, engine=engine, cost_model=prices)
    assert prices is not None, "a schedule without prices is refused by simulate"
    outputs.check(prices)
    execution = simulate_events(saved, device, network=network, engine=engine) if event_driven else None
    explained = explain_streams(priced, network, prices) if isinstance(priced, StreamSchedule) else None
    said = _said(saved, priced, execution)

    def files() -> Mapping[str, Writer]:
        told = None if execution else explained
        made = schedule_files(outputs, network, priced, prices, execution=execution, said=said, explanation=told)
        if execution is not None and outputs.draws:
            made |= _active_warps(network, priced, device or saved.device, prices, execution)
        return made

    document = priced.model_dump(mode="json")
    if execution is not None:
        means = ("latency_us", "mean_active_warps", "mean_issue", "mean_l2", "mean_dram", "mean_power")
        ran = {name: getattr(execution, name) for name in means}
        document["event_driven"] = {**ran, "kernels": len(execution.spans)}
    shown = shown_names(network)((priced, explained))
    present(document, _parts(*shown, said), as_json, out=outputs.out, files=files)


def _said(saved: AnySchedule, priced: AnySchedule, execution: Execution | None) -> list[str]:
    """The latency beside that of the saved schedule, and the run event by event."""
    from iossim.report.schedule_tables import expectation_lines, run_words

    ratio = priced.latency_us / saved.latency_us if saved.latency_us else 1.0
    own = "" if priced.source.batch == saved.source.batch else f", batch {saved.source.batch}"
    before = f"{saved.latency_us / 1e3:.3f} ms on {saved.device}{own}, which it was found for ({ratio:.2f}x)"
    lines = [f"{priced.latency_us / 1e3:.3f} ms on {priced.device}; {before}", *expectation_lines(priced)]
    return lines if execution is None else [*lines, run_words(execution, priced.latency_us)]


def _parts(priced: AnySchedule, explained: StreamExplanation | None, said: list[str]) -> Iterator[Part]:
    from iossim.report.schedule_tables import heading, launches_table, path_lines, schedule_table

    yield schedule_table(priced) if explained is None else launches_table(explained.launches, heading(priced))
    yield from path_lines(explained)
    yield from map(wrapped, said)


def _active_warps(
    network: Network, priced: AnySchedule, device: str, prices: CostModel, execution: Execution
) -> dict[str, Writer]:
    """Picture of active warps over time: the sequential schedule above this one."""
    from iossim.api import simulate_events
    from iossim.report.figures.timeline import active_warps_figure
    from iossim.search.scheduler import schedule

    runs = {priced.scheduler: execution}
    if priced.scheduler != "sequential":
        one_by_one = schedule(network, prices, "sequential")
        runs = {"sequential": simulate_events(one_by_one, device, network=network), **runs}
    where = f"{priced.network} on {priced.device}, batch {priced.source.batch}, {priced.precision}"
    return pictures(active_warps_figure(f"{where}, {priced.engine} engine", runs))
