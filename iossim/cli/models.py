"""``iossim models``: the zoo, and the contents of a model; ``iossim search-space``: its number of schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim.base.display import counted
from iossim.cli.options import ModelOptions, command
from iossim.cli.outputs import Part, notes, present, table, tell_written
from iossim.cli.progress import progress_bars

if TYPE_CHECKING:
    from iossim.ir.network import Network

#: A longer table of blocks is shortened to this many of the largest blocks, with this many kinds each.
_ROWS_READ, _ROWS_SHOWN, _KINDS_SHOWN = 24, 12, 6
#: Concurrent work below this fraction of the arithmetic is called little.
_LITTLE = 0.02


@command
def list_models(as_json: bool = False) -> None:
    """List the networks of the zoo."""
    from iossim.models.catalogue import zoo_models

    rows = [
        {"name": zoo.name, "input": "x".join(map(str, zoo.input_shape)), "description": zoo.description}
        for zoo in zoo_models()
    ]
    present(rows, table("Networks of the zoo", rows, wraps=("description",)), as_json)


@command
def show_model(model: str, reading: ModelOptions, whole: bool = False, as_json: bool = False) -> None:
    """Show the contents of a network; of many different blocks only the largest, without --all."""
    from iossim.ir.shown_names import shown_names

    network = shown_names(read := reading.network(model))(read)
    found, widths = _summary(network)
    blocks = [
        {
            "block": block.name,
            "units": len(block.units),
            "width": width,
            "kinds": _listed(Counter(network.units[unit].kind for unit in block.units)),
        }
        for block, width in zip(network.blocks, widths, strict=True)
    ]
    counts, remarks = network.statistics(), [*network.notes, *network.remarks]
    shapes = {
        role: {name: list(network.graph.types[name].shape) for name in names}
        for role, names in (("inputs", network.graph.inputs), ("outputs", network.graph.outputs))
    }
    facts = {
        "model": network.name,
        "hash": network.graph.hash,
        "dtype": str(network.precision),
        **shapes,
        **counts,
        **found,
        "foreign_ops": network.foreign,
        "notes": remarks,
    }
    weights_mib, activations_mib = (found[f"{what}_bytes"] / 2**20 for what in ("weight", "activation"))
    parts: list[Part] = [
        f"{network.name}: {counted(counts['ops'], 'op')}, {counted(counts['units'], 'unit')} in "
        f"{counted(counts['blocks'], 'block')}",
        f"{_count(counts['macs'])} multiply-adds, {_count(counts['parameters'])} parameters",
        f"weights {weights_mib:.1f} MiB; activations at least {activations_mib:.1f} MiB, run sequentially",
        _worth(max(widths, default=0), found["parallelism"]),
    ]
    for role, sizes in shapes.items():
        parts.append(f"{role}: " + ", ".join(f"{name} {'x'.join(map(str, size))}" for name, size in sizes.items()))
    parts += notes(remarks)
    rows = shown = _rows(network, widths)
    most_kinds = None
    if not whole and len(rows) > _ROWS_READ:
        parts.append(f"units: {_listed(Counter(unit.kind for unit in network.units), _ROWS_SHOWN)}")
        # These are the rows with the most independent units, then with the most units, in the network's order.
        largest = sorted(rows, key=lambda row: (-row["width"], -row["units"]))[:_ROWS_SHOWN]
        shown, most_kinds = [row for row in rows if row in largest], _KINDS_SHOWN
    records = [{**row, "kinds": _listed(row["kinds"], most_kinds)} for row in shown]
    parts += table("", records, wraps=("kinds",), shortens=("block",))
    if len(shown) < len(rows):
        parts.append(f"these are the {len(shown)} largest of {len(rows):,} rows; --all shows them all, with all kinds")
    present({**facts, "block_list": blocks}, parts, as_json)


def _summary(network: Network) -> tuple[dict[str, float], list[int]]:
    """Facts of a network that need no device nor its weights, and the width of each block.

    ``activation_bytes`` is a lower bound on every memory plan of one unit after another; ``width`` the largest
    antichain of units within a block. ``parallelism``, the average parallelism, is all arithmetic over that of the
    critical path. It bounds no gain on a device, where time is not proportional to arithmetic.
    """
    from iossim.execution.memory import needed_bytes
    from iossim.schedule.problem import ScheduleProblem
    from iossim.search.counting import width

    graph = network.graph
    flops = [sum(graph.work(node).flops for node in network.unit_nodes(unit)) for unit in network.units]
    longest: list[int] = []
    for unit, before in enumerate(network.predecessors):
        longest.append(flops[unit] + max((longest[other] for other in before), default=0))
    weight_bytes, activation_bytes = needed_bytes(network)
    widths = [width(ScheduleProblem.of_block(network, block)) for block in network.blocks]
    facts = {
        "flops": sum(flops),
        "weight_bytes": weight_bytes,
        "activation_bytes": activation_bytes,
        "width": max(widths, default=0),
        "parallelism": sum(flops) / max(longest) if any(longest) else 1.0,
    }
    return facts, widths


def _worth(width: int, parallelism: float) -> str:
    if width < 2:
        return "a chain: no two units are independent, so nothing can run concurrently"
    share = 1 - 1 / parallelism
    words = f"up to {width} units of a block are independent"
    if share < _LITTLE:
        return f"{words}, but nearly all arithmetic is on the critical path"
    return (
        f"{words}; {share:.0%} of the arithmetic is off the critical path "
        f"(average parallelism {parallelism:.2f}). Gains may be larger: launches, kernels that leave the device "
        "unfilled, merged convolutions"
    )


def _rows(network: Network, widths: Sequence[int]) -> list[dict[str, Any]]:
    """Blocks of a network in order; runs of equal ones share a row, as do runs of single units."""
    kinds = [Counter(network.units[unit].kind for unit in block.units) for block in network.blocks]
    places = range(len(network.blocks))
    rows: list[dict[str, Any]] = []
    for _, group in groupby(places, lambda place: None if kinds[place].total() == 1 else (widths[place], kinds[place])):
        run = list(group)
        first, last = network.blocks[run[0]].name, network.blocks[run[-1]].name
        units = sum((kinds[place] for place in run), Counter[str]())
        name = first if len(run) == 1 else f"{first} to {last}"
        rows.append(
            {"block": name, "blocks": len(run), "units": units.total(), "width": widths[run[0]], "kinds": units}
        )
    return rows


def _count(number: int) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M")):
        if number >= unit:
            return f"{number / unit:.3f} {letter}"
    return f"{number:,}"


def _listed(kinds: Mapping[str, int], most: int | None = None) -> str:
    """Number of each kind; of many kinds only the ``most`` most frequent, and the number of others."""
    ordered = sorted(kinds.items())
    if most is None or len(ordered) <= most:
        return ", ".join(f"{count} {kind}" for kind, count in ordered)
    kept = sorted(sorted(ordered, key=lambda item: -item[1])[:most])
    return f"{_listed(dict(kept))} and {len(ordered) - most} more kinds"


@command
def export_model(model: str, out: Path, reading: ModelOptions, opset: int | None = None) -> None:
    """Write a network with its weights as ONNX, as it is scheduled; its units and blocks are noted in the file."""
    from iossim.models.onnx.export import check_exportable, write_onnx

    network = reading.network(model)
    check_exportable(network, out)
    written = write_onnx(network.graph, out, opset=opset, name=network.name, network=network)
    tell_written(written)


@command
def search_space(
    model: str,
    reading: ModelOptions,
    stages: str = "general",
    max_group_size: int | None = None,
    max_groups: int | None = None,
    as_json: bool = False,
) -> None:
    """Count the search space of concurrent execution, by default unpruned."""
    from iossim.api import search_options
    from iossim.ir.shown_names import shown_names
    from iossim.report.search_words import describe
    from iossim.schedule.problem import ScheduleProblem
    from iossim.search.counting import SearchSpace, count_search_space

    space = search_options(stages, max_group_size, max_groups).space
    network = reading.network(model)
    known: dict[tuple[int, ...], SearchSpace] = {}
    blocks: list[dict[str, str | int]] = []
    with progress_bars(quiet=as_json, unit="blocks") as bars:
        progress = bars("counting")
        for done, block in enumerate(network.blocks, 1):
            problem = ScheduleProblem.of_block(network, block)
            edges = tuple(problem.predecessors.tolist())
            if edges not in known:
                known[edges] = count_search_space(problem, space)
            blocks.append(asdict(known[edges]) | {"name": block.name})
            progress(done, len(network.blocks))
    summed = ("units", "states", "transitions", "distinct_stages")
    totals: dict[str, str | int] = {key: sum(int(block[key]) for block in blocks) for key in summed}
    # Blocks are scheduled independently, so that their numbers of schedules multiply.
    totals["schedules"] = prod(int(block["schedules"]) for block in blocks)
    unpruned = space.max_group_size is None and space.max_groups is None
    title = f"{network.name}, {describe(space)}{', unpruned' if unpruned else ''}"
    document = {"model": network.name, **space.to_json(), "blocks": blocks, "totals": totals}
    rows = [*shown_names(network)(blocks), {"name": "total", **totals}]
    present(document, table(title, rows, shortens=("name",)), as_json)
