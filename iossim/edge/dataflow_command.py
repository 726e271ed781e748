"""``iossim dataflow``: networks on edge devices, split over their units and laid out in the order of reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from iossim.base.errors import OptionError
from iossim.cli.options import command
from iossim.cli.outputs import ExitCode, Writer, json_file, pictures, present, text_file, wants_plot, wrapped
from iossim.cli.progress import interruptible, progress_bars

if TYPE_CHECKING:
    from iossim.edge.distributed import Distributed
    from iossim.edge.plan import EdgePlan
    from iossim.edge.planned import Dataflow
    from iossim.ir.network import Network

#: This many operators are explained where neither --operator nor --all asks for others.
_FEW = 8


@command
def optimize(
    model: str,
    device: str | None = None,
    devices: int = 1,
    link: str | None = None,
    sync: str = "ring",
    mix: str = "mix",
    *,
    parts: bool = False,
    batch: int | None = None,
    dtype: str | None = None,
    policy: str = "priority",
    as_json: bool = False,
    out: Path | None = None,
    plot: bool | None = None,
) -> None:
    """Plan a network on an edge device: each operator whole, split over the units, and also linked.

    With --parts, branches run concurrently on parts of the units where that takes less time. With --devices, show how
    each operator is divided among them, and what they send one another.

    With --out the plan goes to DIR/plan.json, with every transfer's bytes and addresses, and the times to
    DIR/dataflow.json; several devices have one plan each, and DIR/distribution.json.
    """
    from iossim.base.user_files import check_writable
    from iossim.edge.distributed import distributed
    from iossim.edge.explain import dataflow_table, dataflow_words, distribution_table, distribution_words
    from iossim.models.load import load

    name = _needed(device)
    if out is not None:
        check_writable(out)
    network = load(model, batch=batch, dtype=dtype)
    found: Dataflow | Distributed
    code = ExitCode.DONE
    if parts and devices != 1:
        raise OptionError("`parts` are of one device's units; leave `devices` out")
    if devices == 1:
        found = planned = _planned(network, name, policy, parts, quiet=as_json)
        code = ExitCode.INCOMPLETE if planned.was_interrupted else ExitCode.DONE
        title, table, words = _title(network, found.device.name), dataflow_table(found), dataflow_words(found)
    else:
        found = distributed(network, name, devices, link=link, sync=sync, mix=mix, policy=policy)
        title = _title(network, f"{devices} {found.device.name}")
        table, words = distribution_table(found), distribution_words(found)
    started = perf_counter()
    said = [wrapped(title, "bold"), table, wrapped(words)]
    try:
        present(found.to_json, said, as_json, out=out, files=lambda: _files(found, title, wants_plot(plot)), code=code)
    finally:
        if out is not None:
            typer.echo(f"writing them took {perf_counter() - started:.1f} s", err=True)


@command
def explain(
    model: str,
    device: str | None = None,
    operator: list[str] | None = None,
    all_operators: bool = False,
    *,
    batch: int | None = None,
    dtype: str | None = None,
    policy: str = "priority",
    as_json: bool = False,
) -> None:
    """Explain a plan on one edge device, the longest operators first; for named ones, price every split."""
    from iossim.edge.explain import explain_dataflow, explanation_lines, explanation_overview
    from iossim.models.load import load

    found = _planned(load(model, batch=batch, dtype=dtype), _needed(device), policy, quiet=as_json)
    explained = explain_dataflow(found, operator or [])
    ordered = [one for one in explained.by_importance if not operator or one.operator in operator]
    shown = ordered if all_operators or operator else ordered[:_FEW]
    lines = explanation_overview(explained)
    for one in shown:
        lines += ["", *explanation_lines(one)]
    if len(shown) < len(ordered):
        rest = sum(one.share for one in ordered[len(shown) :])
        more = f"{len(ordered) - len(shown)} more operators take {rest:.1%}"
        lines.append(f"\n{more} (--all; --operator NAME prices every split)")
    present(explained.to_json, lines, as_json)


@command
def run(
    model: str,
    device: str | None = None,
    devices: int = 1,
    processes: int | None = None,
    link: str | None = None,
    sync: str = "ring",
    mix: str = "mix",
    *,
    batch: int | None = None,
    dtype: str | None = None,
    policy: str = "priority",
    seed: int = 0,
    as_json: bool = False,
) -> None:
    """Run a network's plan on generated inputs and compare the outputs with the network's; exit code 1 if they differ.

    A plan for one device runs byte by byte in the memories that it names. With several, each device has its own arrays
    and gets what it is sent; with --processes each of them is a process, and the bytes sent are counted.
    """
    from iossim.edge.distributed import distributed
    from iossim.edge.plan import Variant
    from iossim.edge.runs import run as run_found
    from iossim.models.load import load

    name = _needed(device)
    if processes is not None and devices != 1:
        raise OptionError("`processes` says how many `devices` there are; leave one of them out")
    for option, value, least in (("processes", processes, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise OptionError(f"`{option}` {value} is too few; give {least} or more")
    network = load(model, batch=batch, dtype=dtype)
    found: EdgePlan | Distributed
    if processes is None and devices == 1:
        found = _planned(network, name, policy, quiet=as_json).plans[Variant.FULL]
    else:
        found = distributed(
            network, name, devices if processes is None else processes, link=link, sync=sync, mix=mix, policy=policy
        )
    done = run_found(found, processes is not None, seed)
    code = ExitCode.DONE if done.holds else ExitCode.DOES_NOT_HOLD
    present(done.to_json, [done.words()], as_json, code=code)


def _planned(network: Network, device: str, policy: str, parts: bool = False, *, quiet: bool) -> Dataflow:
    """Plans of a network on one device, with a progress bar; an interrupt ends the search with the best so far."""
    from iossim.edge.planned import dataflow

    with progress_bars(quiet=quiet, unit="", tells_rest=True) as start, interruptible():
        return dataflow(network, device, policy=policy, parts=parts, progress=start)


def _needed(device: str | None) -> str:
    if device is None:
        raise OptionError("dataflow needs an edge device; give --device c6678 ('iossim devices list' shows them)")
    return device


def _title(network: Network, where: str) -> str:
    return f"{network.name} on {where}, batch {network.source.batch}, {network.precision}, simulated"


def _files(found: Dataflow | Distributed, title: str, draws: bool) -> Mapping[str, Writer]:
    from iossim.edge import figures as drawn
    from iossim.edge.distributed import Distributed
    from iossim.edge.planned import distribution_to_json, plan_to_json

    if isinstance(found, Distributed):
        files = {f"plan{index}.json": _compact(plan_to_json(each)) for index, each in enumerate(found.plans)}
        steps = {"steps": distribution_to_json(found.distribution)}
        return files | {"distribution.json": _compact(found.to_json() | steps)}
    *_, (plan, _) = found.runs.values()
    files = {
        "plan.json": _compact(plan_to_json(plan)),
        "dataflow.json": json_file(found.to_json()),
        "trace.json": text_file(drawn.dataflow_trace(found, title)),
    }
    if draws:
        files |= pictures(drawn.memory_figure(found, title), drawn.dataflow_timeline_figure(found, title))
    return files


def _compact(document: object) -> Writer:
    """JSON without whitespace: plans of thousands of units have tens of MB."""
    return text_file(json.dumps(document, separators=(",", ":")) + "\n")
