"""A network on an edge device, unsplit, split over units, and linked: operators' times side by side; and plans as JSON.

JSON has the place of all data, and every transfer of each unit with bytes and addresses. A transfer has ``moved_bytes``
if that differs from the requested size.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from iossim.base.errors import StartProgress, public, silent
from iossim.edge.capacity import check, uses
from iossim.edge.distribution import Distribution, Exchange
from iossim.edge.optimize import SplitSearch, plan
from iossim.edge.parts import Parts, in_parts
from iossim.edge.plan import EdgePlan, OperatorStep, OutputSlice, Staged, Transfer, Variant, Work, unit_work
from iossim.edge.simulator.events import Timed, simulate
from iossim.edge.splitting import partition_words
from iossim.execution.plan import Box
from iossim.hardware.edge import EdgeDevice, edge_device
from iossim.ir.network import Network
from iossim.tasks.requests import network_of


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator in the three plans; ``partition``, ``layout`` and ``moved_bytes`` (over the shared and the external
    memory) are of the full one. ``whole`` is the reason why it runs whole on one unit.
    """

    operator: str
    kind: str
    partition: str
    slices: int
    layout: str
    moved_bytes: int
    vanilla_us: float
    horizontal_us: float
    full_us: float
    whole: str = ""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Memory in use while an operator runs."""

    operator: str
    start_us: float
    end_us: float
    private_bytes: int
    shared_bytes: int
    external_bytes: int


@dataclass(frozen=True)
class Dataflow:
    """Plans of a network. ``optimise_s`` is the time to find the full plan, without its simulation. ``parts`` is the
    full plan with concurrent branches, if requested.
    """

    plans: Mapping[Variant, EdgePlan]
    times: Mapping[Variant, Timed]
    policy: str
    optimise_s: float
    operators: tuple[OperatorRow, ...]
    parts: Parts | None = None
    #: True if the search for splits was interrupted; later operators are split by the priority.
    was_interrupted: bool = False

    def __repr__(self) -> str:
        plan = self.plans[Variant.FULL]
        return f"<Dataflow of {plan.network.name} on {self.device.name}: {self.total_us(Variant.FULL) / 1e3:,.3f} ms>"

    def total_us(self, variant: Variant) -> float:
        return self.times[variant].total_us

    @property
    def runs(self) -> dict[str, tuple[EdgePlan, Timed]]:
        """Plans by name, each with its times; the last is the one that is written."""
        found = {str(variant): (self.plans[variant], self.times[variant]) for variant in Variant}
        return found | ({"parts": (self.parts.plan, self.parts.timed)} if self.parts else {})

    @property
    def device(self) -> EdgeDevice:
        return self.plans[Variant.FULL].device

    def memory(self, variant: Variant) -> list[MemoryRow]:
        """Contents of each memory over time."""
        return memory_rows(self.plans[variant], self.times[variant])

    def to_json(self) -> dict[str, object]:
        network = self.plans[Variant.FULL].network
        return {
            "model": network.source.model or network.name,
            "device": self.device.name,
            "precision": str(self.plans[Variant.FULL].precision),
            "policy": self.policy,
            "was_interrupted": self.was_interrupted,
            **{f"{variant}_us": self.total_us(variant) for variant in Variant},
            "optimise_s": self.optimise_s,
            **(self.parts.to_json() if self.parts else {}),
            "operators": [asdict(row) for row in self.operators],
            "memory": {str(variant): [asdict(row) for row in self.memory(variant)] for variant in Variant},
        }


def memory_rows(plan: EdgePlan, timed: Timed) -> list[MemoryRow]:
    """Memory in use while each operator runs, in the slice that needs most of the shared and the external memory."""
    rows = []
    for index, step in enumerate(plan.steps):
        most = max(uses(plan, index), key=lambda use: use.shared_bytes + use.external_bytes)
        start_us, end_us = timed.steps[index]
        rows.append(MemoryRow(step.operator.name, start_us, end_us, *most))
    return rows


@public
def dataflow(
    model: Network | str | Path,
    device: EdgeDevice | str | Path,
    policy: str = "priority",
    parts: bool = False,
    progress: StartProgress = silent,
) -> Dataflow:
    """A network on an edge device: its operators whole, split over the units, and linked besides, each plan checked
    against every memory's capacity, and timed.

    ``policy``: ``priority`` (the paper's) or ``exhaustive``. ``parts``: branches may also run concurrently on parts of
    the units if that is faster. An interrupt ends the search for splits (see
    :class:`~iossim.edge.optimize.SplitSearch`), and for parts. Raises DeviceError if an operator cannot be made to fit.
    """
    network, device = network_of(model), edge_device(device)
    # The full plan is split twice: before and after linking.
    search = SplitSearch(policy, progress("operators split"), 3 * len(network.units))
    try:
        return _planned(network, device, search, parts, progress)
    except KeyboardInterrupt:
        search.was_interrupted = True
        return _planned(network, device, search, False, progress)


def _planned(
    network: Network, device: EdgeDevice, search: SplitSearch, parts: bool, progress: StartProgress
) -> Dataflow:
    plans = {}
    optimise_s = 0.0
    for variant in Variant:
        start = time.perf_counter()
        plans[variant] = plan(network, device, variant, search)
        optimise_s = time.perf_counter() - start
    told = progress("plans checked and timed")
    times = {}
    told(0, len(plans))
    for done, (variant, one) in enumerate(plans.items(), 1):
        check(one)
        times[variant] = simulate(one)
        told(done, len(plans))
    full = plans[Variant.FULL], times[Variant.FULL]
    times_us = zip(*(times[variant].steps_us for variant in Variant), strict=True)
    rows = tuple(_row(*full, index, *each) for index, each in enumerate(times_us))
    divided = None
    if parts and not search.was_interrupted:
        divided = in_parts(*full, search.policy, progress=progress("blocks in parts"))
    return Dataflow(plans, times, search.policy, optimise_s, rows, divided, search.was_interrupted)


def _row(full: EdgePlan, timed: Timed, index: int, *times_us: float) -> OperatorRow:
    step, moved_bytes = full.steps[index], sum(timed.moved_bytes[index].values())
    vanilla_us, horizontal_us, full_us = times_us
    partition = "whole" if step.operator.unknown else partition_words(step.operator, step.slices[0].partition)
    form = next((link.form for link in full.links if link.value in step.operator.outputs), "")
    told = step.operator.name, step.operator.kind, partition, len(step.slices), form
    return OperatorRow(*told, moved_bytes, vanilla_us, horizontal_us, full_us, step.operator.unknown)


VERSION = 2


def plan_to_json(plan: EdgePlan) -> dict[str, object]:
    """All of a plan; commands of a step are in ``units``, between barriers."""
    return {
        "version": VERSION,
        "model": plan.network.source.model or plan.network.name,
        "graph": plan.network.graph.hash,
        "device": plan.device.name,
        "precision": str(plan.precision),
        "variant": str(plan.variant),
        "parameters": dict(plan.parameters),
        "buffers": [
            {
                **_fields(each, "value", "memory", "address", "bytes"),
                "first_stage": each.first,
                "last_stage": each.last,
                "axes": each.layout.order.axes,
                "rows_per_band": each.layout.rows or None,
            }
            for each in plan.buffers.values()
        ],
        "links": [_fields(each, "value", "readers", "bytes", "unlinked_bytes") for each in plan.links],
        "steps": [
            {
                "operator": step.operator.name,
                "stage": stage,
                **_fields(lane, "first_unit", "units"),
                "whole": step.operator.unknown,
                "slices": [_slice(plan, step, part) for part in step.slices],
            }
            for index, (stage, lane) in plan.places.items()
            for step in [plan.steps[index]]
        ],
    }


def _fields(value: object, *names: str) -> dict[str, object]:
    return {name: getattr(value, name) for name in names}


def distribution_to_json(found: Distribution) -> list[dict[str, object]]:
    """Steps of all devices: the messages before each operator, and the box that each device computes."""
    steps: list[dict[str, object]] = [
        {
            "operator": step.operator.name,
            "mode": str(step.mode),
            "boxes": [_box(box) for box in step.boxes],
            "exchanges": [_exchange(each) for each in step.exchanges],
        }
        for step in found.steps
    ]
    return [*steps, {"operator": None, "exchanges": [_exchange(each) for each in found.gathers]}]


def _exchange(exchange: Exchange) -> dict[str, object]:
    messages = [
        {**_fields(each, "round", "source", "target"), "boxes": [_box(box) for box in each.boxes]}
        for each in exchange.collective.messages
    ]
    return {"value": exchange.value, "messages": messages}


def _box(box: Box) -> dict[str, object]:
    return {"from": box.starts, "shape": box.shape}


def _slice(plan: EdgePlan, step: OperatorStep, part: OutputSlice) -> dict[str, object]:
    units = ((unit, unit_work(plan, step, part, unit)) for unit in range(part.partition.units))
    return {
        "partition": [[step.operator.axis_name(axis), parts] for axis, parts in part.partition.words],
        "bring": [_staged(each) for each in part.inputs],
        "units": [{"unit": unit, "chunks": [_work(each) for each in works]} for unit, works in units if works],
        "take": None if part.output is None else _staged(part.output),
    }


def _staged(staged: Staged) -> dict[str, object]:
    return {"value": staged.value, **_box(staged.box), "shared_address": staged.address, "bytes": staged.bytes}


def _work(work: Work) -> dict[str, object]:
    return {
        **_box(work.chunk.demand.box),
        "dma" if work.by_dma else "parameters": [_transfer(each) for each in work.parameters],
        "private_address": work.private_address,
        "private_bytes": work.private_bytes,
        "load": [_transfer(each) for each in work.reads],
        "compute_us": work.compute_us,
        "store": [_transfer(each) for each in work.writes],
    }


def _transfer(each: Transfer) -> dict[str, object]:
    told = {"what": each.what, "memory": str(each.memory), "address": each.address, "bytes": each.size}
    if each.bytes != each.size:
        told["moved_bytes"] = each.bytes
    return told if each.streamed else told | {"waits": True}
