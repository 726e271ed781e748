"""Which published latency a schedule's may be held against, and whether that took part in the fit of its prices."""

from __future__ import annotations

from iossim.execution.engine import Engine
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.measurements.published_figures import SEQUENTIAL, is_pinned, published_latency_us
from iossim.schedule.schedule import Schedule
from iossim.search.block_parts import PAPER_GROUP_SIZE, PAPER_GROUPS
from iossim.search.ios import STRATEGIES
from iossim.search.options import StageSpace


def comparable_published_us(schedule: Schedule, model: str, space: StageSpace | None = None) -> float | None:
    """The measured latency (us) that is published of what a schedule is of, by its scheduler; None where none compares.

    ``model`` is the network as publications call it. Published are fp32 and the paper's engine. Random prices predict none;
    nor does a search that was pruned more than the published ones (``space``, where it is known).
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
    """Whether the published figure of a network by a scheduler took part in the fit of the profile's parameters, or a number of
    the simulator is pinned on it."""
    return is_pinned(model, scheduler) or (scheduler == SEQUENTIAL and model in profile.provenance.left_out)


def _is_narrower(space: StageSpace) -> bool:
    size, groups = space.max_group_size, space.max_groups
    return (size is not None and size < PAPER_GROUP_SIZE) or (groups is not None and groups < PAPER_GROUPS)
