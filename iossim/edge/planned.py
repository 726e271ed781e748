"""A network on an edge device, unsplit, split over units, and linked: operators' times side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iossim.api import network_of
from iossim.base.errors import public
from iossim.edge.capacity import check, uses
from iossim.edge.linking import linked_form
from iossim.edge.optimize import SplitSearch, plan
from iossim.edge.parts import Parts, in_parts
from iossim.edge.plan import EdgePlan, OperatorStep, Variant
from iossim.edge.simulator.events import Timed, simulate
from iossim.hardware.edge import EdgeDevice, edge_device
from iossim.ir.network import Network
from iossim.search.scheduler import StartProgress, ignore


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
    #: Whether the search for splits was interrupted; later operators are split by the priority.
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

    def to_json(self) -> dict[str, Any]:
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
    progress: StartProgress = lambda label: ignore,
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
    for done, (variant, one) in enumerate(plans.items()):
        told(2 * done, 2 * len(plans))
        check(one)
        told(2 * done + 1, 2 * len(plans))
        times[variant] = simulate(one)
    told(2 * len(plans), 2 * len(plans))
    rows = tuple(_row(plans[Variant.FULL], times, index) for index in range(len(network.units)))
    full = plans[Variant.FULL], times[Variant.FULL]
    divided = None
    if parts and not search.was_interrupted:
        divided = in_parts(*full, search.policy, progress=progress("blocks in parts"))
    return Dataflow(plans, times, search.policy, optimise_s, rows, divided, search.was_interrupted)


def _row(full: EdgePlan, times: Mapping[Variant, Timed], index: int) -> OperatorRow:
    step, moved_bytes = full.steps[index], sum(times[Variant.FULL].moved_bytes[index].values())
    vanilla_us, horizontal_us, full_us = (
        end - start for variant in Variant for start, end in (times[variant].steps[index],)
    )
    told = step.operator.name, step.operator.kind, _partition(step), len(step.slices), _layout(full, step)
    return OperatorRow(*told, moved_bytes, vanilla_us, horizontal_us, full_us, step.whole)


def _partition(step: OperatorStep) -> str:
    """Partition in words, such as ``outC 8 x inH 7``; ``whole`` on one unit."""
    words = step.slices[0].partition.words
    parts = [f"{step.operator.axis_name(axis)} {count}" for axis, count in words]
    return "whole" if step.whole or not parts else ", ".join(parts)


def _layout(full: EdgePlan, step: OperatorStep) -> str:
    """Linked form of its output's layout, with the rows of a band; empty if it is as made."""
    for link in full.links:
        if link.value in step.operator.outputs:
            readers = [full.network.unit_index[name] for name in link.readers]
            form = linked_form(full.network, step.operator.index, readers)
            return form + (f", bands of {link.layout.bands.rows}" if link.layout.bands else "")
    return ""
