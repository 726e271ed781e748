"""``iossim explain``: why each stage of a saved schedule is as it is, and what the next best choice would have cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from iossim.cli import options
from iossim.cli.dataflow import tell_explained
from iossim.cli.options import option, switch
from iossim.cli.outputs import Part, present, text_file, write_files
from iossim.cli.progress import progress_bars
from iossim.cli.streams import tell_streams

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.tasks.explain import Explanation

StageNumbers = Annotated[
    list[int] | None, option("--stage", "N", "Explain stage N in full (the first is 0); may be repeated.")
]
AllStages = Annotated[bool, switch("--all", "Explain every stage, not only the slowest.")]
OwnPrices = Annotated[
    str | None,
    option(
        "--cost-model",
        "NAME",
        "Prices of the alternatives to a stage: simulator, table:PRICES.json or replay:STORE; by default the "
        "simulator, if it priced the schedule or --device is given.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command(
        "explain",
        help="Explain each stage of a saved schedule: what limits it, what it saves, and what the next best choice "
        "would cost.",
    )(explain)


def explain(
    schedule: options.SavedSchedule,
    device: options.Device = None,
    engine: options.OtherEngine = None,
    model: options.OtherModel = None,
    cost_model: OwnPrices = None,
    store: options.Store = None,
    stage: StageNumbers = None,
    all_stages: AllStages = False,
    out: options.Out = None,
    as_json: options.Json = False,
) -> None:
    """Explain a saved schedule, by default at the prices of its own device; --out writes drawings (DOT).

    A plan.json of 'iossim dataflow optimize' is explained operator by operator. Of a rewritten network each
    substitution is told: what it changed, and what the network took before and after it.
    """
    from iossim import api
    from iossim.base.errors import OptionError
    from iossim.base.user_files import check_writable
    from iossim.edge.plan_json import is_saved_plan, planned_again
    from iossim.report.explanation import overview, rewriting_dot, rewriting_lines, slowest_lines
    from iossim.report.schedule_formats import dot
    from iossim.schedule.schedule import StreamSchedule
    from iossim.search.assemble import reprice_streams
    from iossim.tasks.explain import explain as explain_schedule
    from iossim.tasks.explain_rewriting import explain_rewriting
    from iossim.tasks.stream_explain import explain_streams

    prices: CostModel | None
    if is_saved_plan(schedule):
        tell_explained(planned_again(schedule, device, model), [], all_stages, as_json)
        return
    if out is not None:
        check_writable(out)
    saved, network = api.read_any_schedule(schedule, model)
    if isinstance(saved, StreamSchedule):
        if stage:
            raise OptionError(f"{schedule} is of streams, and has no stages; leave --stage away, or give --all")
        under = engine or saved.engine or "auto"
        prices = api.cost_model("simulator", device or saved.device, network.precision, under)
        if prices.identity.to_json() != saved.cost_model:
            saved = reprice_streams(saved, network, prices)
        tell_streams(explain_streams(saved, network, prices), all_stages, as_json)
        if out is not None:
            write_files(out, {"graph.dot": text_file(dot(network, saved))})
        return
    under = engine or saved.engine or "auto"
    prices = None  # neither at hand nor asked for
    if cost_model is not None:
        own = saved.device if cost_model.partition(":")[0] == "simulator" else None
        prices = api.cost_model(cost_model, device or own, network.precision, under, store)
    elif device is not None or saved.cost_model.get("name") == "simulator":
        prices = api.cost_model("simulator", device or saved.device, network.precision, under)
    priced = saved if prices is None else api.simulate(saved, None, network=network, engine=engine, cost_model=prices)
    with progress_bars(quiet=as_json, unit="blocks") as progress:
        found = explain_schedule(priced, network, prices, stage or None, progress("explain"))
    steps = explain_rewriting(saved, prices, model)
    if out is not None:
        files = {"graph.dot": text_file(dot(network, priced))}
        if steps:
            files["rewriting.dot"] = text_file(rewriting_dot(network.name, steps))
        write_files(out, files)
    document = {**found.to_json(), "rewriting": [step.to_json() for step in steps]}
    parts: list[Part] = [*overview(found)]
    all_by = "" if all_stages else "--all shows them; --stage N tells more about one"
    if steps and not stage:
        parts += ["", *rewriting_lines(steps, all_stages)]
    present(document, [*parts, *(_in_full(found) if stage else slowest_lines(found, all_by))], as_json)


def _in_full(found: Explanation) -> Iterator[Part]:
    """All that is known of each stage."""
    from iossim.report.explanation import choices_table, kernels_table, long_lines

    for one in found.stages:
        yield from ("", *long_lines(one))
        if one.facts is not None and one.facts.kernels:
            yield kernels_table(one)
        if one.ways or one.next_best or one.own:
            yield choices_table(one)
