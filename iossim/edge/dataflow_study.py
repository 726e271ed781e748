"""Studies of networks on edge devices: the axis of plans, their metrics and their rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from iossim.base.tables import Column
from iossim.edge.capacity import uses
from iossim.edge.distributed import distributed, link_of
from iossim.edge.plan import EdgePlan, Variant
from iossim.edge.planned import dataflow
from iossim.hardware.edge import EdgeDevice, edge_device
from iossim.hardware.lowering.unit import main_kind
from iossim.hardware.names import edge_names
from iossim.ir.network import Network
from iossim.study.study_kind import Axis, Labelled, Metric, Planned, StudyKind

_MIB = 1 << 20


class Dataflow(Labelled):
    """Planning for edge devices; in a file a policy alone (``priority``, ``exhaustive``, ``none``) suffices."""

    _ALONE = "policy"
    policy: Literal["none", "priority", "exhaustive"] = "priority"
    label: str = ""
    #: Number of devices, joined by ``link`` (by default the first that the device has).
    devices: int = Field(default=1, ge=1, le=1024)
    link: str | None = None
    sync: Literal["ring", "server"] = "ring"
    #: Division of operators among the devices: the best for each (``mix``), or all alike.
    mix: Literal["mix", "outC", "inH", "inW"] = "mix"

    def _own_label(self) -> str:
        parts = ["1 device"] if self.devices == 1 else [f"{self.devices} devices", self.sync, self.mix]
        parts += [self.link] if self.link and self.devices > 1 else []
        parts += [self.policy] if self.policy != "priority" else []
        return ", ".join(parts) if self.policy != "none" else "no dataflow"


def _metric(name: str, words: str, unit: str, title: str, digits: int = 1) -> Metric:
    return Metric(name, words, unit, column=Column(name, title, digits))


def _several(asked: Sequence[Dataflow]) -> bool:
    return any(each.devices > 1 for each in asked)


def _check(name: str, changes: Mapping[str, float], asked: Dataflow) -> None:
    if asked.devices > 1:
        link_of(_device(name, changes), asked.link)


def _rows(
    network: Network, device: EdgeDevice, asked: Dataflow, schedulers: Sequence[str]
) -> tuple[list[Planned], dict[str, float]]:
    """One row per plan; several devices have one plan."""
    if asked.devices > 1:
        several = distributed(network, device, asked.devices, asked.link, asked.sync, asked.mix, asked.policy)
        figures = _figures(network, several.plans, [each.compute_us + each.waited_us for each in several.rows])
        figures |= {"sent_mib": several.distribution.sent_bytes / _MIB, "waited_ms": several.waited_us / 1e3}
        row = Planned(str(Variant.FULL), several.latency_us, several.one_us, figures)
        return [row], {str(Variant.FULL): several.optimise_s}
    found = dataflow(network, device, asked.policy)
    totals_us = {name: found.total_us(Variant(name)) for name in schedulers}
    baseline_us = totals_us.get(str(Variant.VANILLA), max(totals_us.values()))
    rows = []
    for name, total_us in totals_us.items():
        variant = Variant(name)
        figures = _figures(network, [found.plans[variant]], found.times[variant].steps_us)
        rows.append(Planned(name, total_us, baseline_us, figures))
    return rows, {str(Variant.FULL): found.optimise_s}


def _figures(network: Network, plans: Sequence[EdgePlan], times_us: Sequence[float]) -> dict[str, object]:
    """Peak uses of memories on any one device, and times of operators summed by kind, the longest first."""
    seen = [use for plan in plans for step in range(len(plan.steps)) for use in uses(plan, step)]
    by_kind: defaultdict[str, float] = defaultdict(float)
    for unit, us in zip(network.units, times_us, strict=True):
        by_kind[main_kind(network, unit)] += us
    return {
        **{
            f"{name}_mib": max(getattr(use, f"{name}_bytes") for use in seen) / _MIB
            for name in ("private", "shared", "external")
        },
        "time_by_kind_us": dict(sorted(by_kind.items(), key=lambda one: -one[1])),
    }


def _device(name: str, changes: Mapping[str, float]) -> EdgeDevice:
    return edge_device(name).changed(changes)


KIND = StudyKind(
    axis=Axis("dataflow", "dataflow", "with dataflow {}", 6, 5, Dataflow(policy="none")),
    # Peak use of memories on any one device; of several devices the bytes that they exchange, and the time that they
    # wait for them.
    metrics=(
        _metric("private_mib", "use of a unit's memory", " MiB of a unit's memory", "a unit's memory, MiB", 2),
        _metric("shared_mib", "use of shared memory", " MiB of shared memory", "shared memory, MiB"),
        _metric("external_mib", "use of external memory", " MiB of external memory", "external memory, MiB"),
        _metric("sent_mib", "amount of data sent", " MiB sent", "sent, MiB"),
        _metric("waited_ms", "time of waiting", " ms of waiting", "waited", 2),
    ),
    noun="an edge device",
    plural="edge devices",
    examples=("none", "priority", "exhaustive"),
    is_asked=lambda asked: asked.policy != "none",
    device_names=edge_names,
    device=_device,
    # Several devices run full plans alone.
    schedulers=lambda asked: list(map(str, [Variant.FULL] if _several(asked) else Variant)),
    check=_check,
    rows=_rows,
    baseline=lambda asked, names: "one device" if _several(asked) else "vanilla" * (Variant.VANILLA in names),
)
