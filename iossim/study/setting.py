"""A point of a study, loaded: its network, its device, its prices. What points share is loaded once in a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iossim.api import cost_model
from iossim.cost.model import CostModel
from iossim.devices.profile import DeviceProfile
from iossim.execution.engine import Engine
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.measurements.published_figures import published_latency_us
from iossim.prediction.schedule_interval import ScheduleErrors, schedule_errors
from iossim.schedule.schedule import Schedule
from iossim.scheduling.ios import STRATEGIES
from iossim.study.kept import Kept
from iossim.study.points import Point, device_of, network_of
from iossim.study.scenario import Search

_MIB = 1 << 20
#: The pruning r and s of the searches whose latencies are published.
_PUBLISHED_GROUP_SIZE, _PUBLISHED_GROUPS = 3, 8

# Points come so that those of one network follow each other. Networks hold their weights only once these are asked for.
_NETWORKS: Kept[Network] = Kept(2)
_PROFILES: Kept[DeviceProfile] = Kept(64)
_SETTINGS: Kept[Setting] = Kept(2)


@dataclass(frozen=True, eq=False)
class Setting:
    """What the schedules of a point are made and priced with; ``errors`` is None where prices predict no device."""

    point: Point
    network: Network
    profile: DeviceProfile
    prices: CostModel
    errors: ScheduleErrors | None

    @property
    def weights_mib(self) -> float:
        return sum(constant.type.bytes for constant in self.network.graph.constants.values()) / _MIB

    @property
    def is_in_sample(self) -> bool:
        """Whether published figures of the model took part in the fit of the device's parameters."""
        return self.point.model.model in self.profile.provenance.left_out

    @property
    def board_power_w(self) -> float | None:
        """The device's; None where its profile knows none, as that of a CPU."""
        fact = self.profile.datasheet.board_power_w
        return fact.value if fact else None

    def published_ms(self, scheduler: str) -> float | None:
        """The measured latency that is published for this point, where one is known."""
        point = self.point
        is_whole = point.model.block is None and not point.model.shapes and not point.device.set
        is_predicted = self.errors is not None and point.engine == Engine.PAPER
        if not is_whole or not is_predicted or self.network.precision is not Precision.FP32:
            return None
        if scheduler in STRATEGIES and _is_narrower(point.search):
            return None
        found_us = published_latency_us(point.model.model, self.profile.name, point.batch, scheduler)
        return None if found_us is None else found_us / 1e3


def setting_of(point: Point) -> Setting:
    """Load a point; raises a subclass of IossimError for what cannot be loaded."""
    return _SETTINGS.get(point.key, lambda: _load(point))


def with_intervals(schedules: Sequence[Schedule], errors: ScheduleErrors | None) -> list[Schedule]:
    """Schedules of one point with their intervals and ties; as they are where the prices predict nothing."""
    if errors is None:
        return list(schedules)
    judged = []
    for one in schedules:
        interval = errors.interval(one)
        ties = [other.scheduler for other in schedules if other is not one and errors.is_tie(one, other)]
        judged.append(one.model_copy(update={"interval_us": [interval.low_us, interval.high_us], "ties": ties}))
    return judged


def _is_narrower(search: Search) -> bool:
    """Whether a search was pruned more than those that are published."""
    size, groups = search.max_group_size, search.max_groups
    return (size is not None and size < _PUBLISHED_GROUP_SIZE) or (groups is not None and groups < _PUBLISHED_GROUPS)


def _load(point: Point) -> Setting:
    model, device = point.model.model_dump_json(), point.device.model_dump_json()
    profile = _PROFILES.get(device, lambda: device_of(point.device))
    network = _NETWORKS.get((model, point.batch, point.dtype, point.seed), lambda: network_of(point))
    spec = f"random:{point.seed}" if point.cost_model == "random" else point.cost_model
    prices = cost_model(spec, profile, network.precision, point.engine)
    return Setting(point, network, profile, prices, schedule_errors(network, prices))
