"""Published latencies and errors, with sources (``published_figures.yaml``), beside a schedule's: comparable ones,
in-sample ones, and predictions by a fit without them.

A prediction of a figure that took part in a fit is *in-sample*: it shows how well the model can be adapted to it. For
each such network the profile holds the parameters of a fit without it, whose predictions are out of sample.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NotRequired, TypedDict

from iossim.base.shipped_yaml import shipped
from iossim.execution.engine import Engine
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.ir.types import Precision
from iossim.schedule.schedule import Schedule
from iossim.search.block_parts import PAPER_GROUP_SIZE, PAPER_GROUPS
from iossim.search.ios import STRATEGIES
from iossim.search.options import StageSpace

#: The scheduler whose figures fits may use; those of all others are held out.
SEQUENTIAL = "sequential"


def published_latency_us(model: str, device: str, batch: int, scheduler: str) -> float | None:
    """The published latency of a network (fp32, streams with syncs between stages), or None if unknown."""
    for row in published_figures()["networks"]:
        if (row["model"], row["device"], row["batch"]) == (model, device, batch):
            latency_ms = row["latency_ms"].get(scheduler)
            return None if latency_ms is None else 1e3 * float(latency_ms)
    return None


def is_pinned(model: str, scheduler: str) -> bool:
    """True where a number of the simulator was chosen by hand to match the figure of a network and scheduler."""
    return any(row["model"] == model and scheduler in row.get("pinned", ()) for row in published_figures()["networks"])


def published_dataflow(device: str) -> dict[str, list[float]]:
    """Minimum and maximum saving of Xenos's ``horizontal`` and ``vertical`` steps on a device, in per cent."""
    return next((row for row in published_figures()["dataflow"] if row["device"] == device), {})


class NetworkFigures(TypedDict):
    """Latencies of a network; fits see the sequential one unless it is not ``fitted``."""

    model: str
    device: str
    batch: int
    latency_ms: dict[str, float]
    fitted: NotRequired[bool]
    pinned: NotRequired[list[str]]


@cache
def published_figures() -> dict[str, Any]:
    """The whole file: ``networks`` are :class:`NetworkFigures`."""
    figures: dict[str, Any] = shipped("iossim.prediction", "published_figures.yaml")
    return figures


def comparable_published_us(schedule: Schedule, model: str, space: StageSpace | None = None) -> float | None:
    """Measured latency (us) published for a schedule's network and scheduler; None if none is comparable.

    ``model`` is the network's name in publications. Published figures are for fp32 and the paper's engine. Random
    prices predict none; nor does a search that was pruned more than the published ones (``space``, if known).
    """
    if (
        schedule.cost_model["name"] == "random"
        or schedule.engine != Engine.PAPER
        or schedule.precision != Precision.FP32
    ):
        return None
    if space is not None and schedule.scheduler in STRATEGIES and _is_narrower(space):
        return None
    return published_latency_us(model, schedule.device, schedule.source.batch, schedule.scheduler)


def is_in_sample(profile: DeviceProfile, model: str, scheduler: str) -> bool:
    """True where the profile's parameters were fitted to the published figure of a network and scheduler, among others,
    or a number of the simulator was set by it.
    """
    return is_pinned(model, scheduler) or (scheduler == SEQUENTIAL and model in profile.provenance.left_out)


def _is_narrower(space: StageSpace) -> bool:
    size, groups = space.max_group_size, space.max_groups
    return (size is not None and size < PAPER_GROUP_SIZE) or (groups is not None and groups < PAPER_GROUPS)


def without_network(profile: DeviceProfile, model: str) -> DeviceProfile | None:
    """The profile fitted without the figures of ``model``; None if they took no part in its fit."""
    values = profile.provenance.left_out.get(model)
    return None if values is None else with_values(profile, values, left_out={})
